"""Texts as the input of an estimator whose method trains through the encoder.

In a temporary folder the texts become a store that is only planned (sub-tokens, no states). So training is the same as
with ``fusionkit fit --method``: the same order, steps and weights.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fusionkit.dataset.task_data import TaskData
from fusionkit.encode.batching import Batching
from fusionkit.encode.job import make_job
from fusionkit.encode.shard import Shard, encode_shard
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.train.arrays import ArrayExamples, examples_of
from fusionkit.fit.train.result import DivergenceError, RunResult
from fusionkit.machine.devices import device_of
from fusionkit.sources import Columns, open_source
from fusionkit.specs import EncodeSpec, RunSpec
from fusionkit.store import Store, open_planned
from fusionkit.tuning import trainer
from fusionkit.tuning.encoder import TunedEncoder, tuned
from fusionkit.tuning.live import LiveStates
from fusionkit.tuning.passes import FromText
from fusionkit.tuning.tokens import tokens_of


class TextRun:
    """Texts, the encoder that reads them, and how a run is trained over both."""

    def __init__(self, texts: Sequence[str], name: str, device: str) -> None:
        self._texts, self._device = texts, device
        self.encoder: Encoder = load_encoder(name, device=device)

    @contextmanager
    def examples(self) -> Iterator[tuple[ArrayExamples, Store]]:
        """The texts' sub-tokens as examples without states, and the planned store that holds them."""
        with planned(self._texts, self.encoder) as store:
            yield examples_of(store["train"]), store

    def train(self, spec: RunSpec, data: TaskData, store: Store) -> tuple[RunResult, TunedEncoder]:
        """Train a run over these examples; returns its result, and the encoder with what its method trained."""
        context = SweepContext(store, device=device_of(self._device))
        ((_, result),) = trainer.train(spec, context, _nobody, _nobody, data)
        if isinstance(result, DivergenceError):
            raise result
        assert isinstance(result, RunResult), "a run of its own is not stopped for others"
        found = tuned(load_encoder(self.encoder.name, device=self._device), spec)
        found.attached.load_delta(result.delta)
        found.attached.train(False)
        return result, found


def live_examples(texts: Sequence[str], encoder: Encoder) -> ArrayExamples:
    """Examples whose states an encoder computes on demand."""
    with planned(texts, encoder) as store:
        split = store["train"]
        states = LiveStates(FromText(encoder, tokens_of(split)), range(encoder.layers), Batching.on("cpu"))
        return ArrayExamples(states, np.array(split.row_offsets), np.array(split.row_mask))


@contextmanager
def planned(texts: Sequence[str], encoder: Encoder) -> Iterator[Store]:
    """A store of the texts' sub-tokens, in its split ``train``."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts"
        source.mkdir()
        lines = "".join(f"{json.dumps({'text': text})}\n" for text in texts)
        (source / "train.jsonl").write_text(lines, encoding="utf-8")
        spec = EncodeSpec(encoder=encoder.name, rows="tokens")
        job = make_job(open_source(str(source)), Columns(text="text"), Path(folder) / "texts.store", spec, encoder)
        encode_shard(job, Shard(0, 1))
        yield open_planned(Path(folder) / "texts.store")


def _nobody(*_: Any) -> None:
    pass
