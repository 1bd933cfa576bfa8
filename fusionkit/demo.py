"""The demonstration: the bundled corpus through the bundled encoder, four fusions, two tasks, three seeds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pandas as pd
import torch

from fusionkit.bundled import travel_desk
from fusionkit.encode import EncodeProgress, encode
from fusionkit.encoder import load_encoder
from fusionkit.fit import FitProgress, RunsFolder, expand, fit
from fusionkit.runs.folder import flat_record
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import open_store

FUSIONS = ("last", "linear", "concat", "attention")
TASKS = {
    "intent": {"task": "classification", "pool": "mean", "epochs": (20,)},
    "slots": {"task": "tagging", "head": "crf", "epochs": (30,)},
}
SEEDS = 3


class DemoProgress(EncodeProgress, FitProgress, Protocol):
    """Who watches: both stages' calls."""


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration measured.

    Attributes:
        frame: one row a run. encoder_seconds: of the one pass, from texts to a finished store.
        encoder_parameters: how many the frozen encoder has.
    """

    frame: pd.DataFrame
    encode_seconds: float
    encoder_parameters: int


def demo(folder: Path, progress: DemoProgress) -> DemoResult:
    """Encode the travel-desk corpus once (rows of tokens serve both tasks) and fit every head.

    Args:
        folder: where the store and the runs are made; anew, so that the times are real.
    """
    source = open_source(str(travel_desk("en")))
    columns = guess_columns(source)
    encoder = load_encoder("minilm", device="cpu", words=True)
    began = time.perf_counter()
    encode(source, columns, folder / "travel-desk.store", EncodeSpec(rows="tokens"), encoder, progress=progress)
    encode_seconds = time.perf_counter() - began
    store = open_store(folder / "travel-desk.store")
    specs = [
        spec
        for label, choices in TASKS.items()
        for spec in expand(store, label=label, fusions=FUSIONS, seeds=SEEDS, **choices)  # type: ignore[arg-type]
    ]
    # As `fusionkit fit` does: these heads are too small for more.
    torch.set_num_threads(1)
    records = fit(store, specs, RunsFolder(folder / "runs"), progress)
    frame = pd.DataFrame([flat_record(record) for record in records])
    return DemoResult(frame, encode_seconds, encoder.parameters)
