"""``fusionkit demo``: the bundled corpus through the bundled encoder, four fusions, two tasks, three seeds."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusionkit.bundled import travel_desk
from fusionkit.cli.console import FOLDER, JSON_OPTION, ProgressBars, out, print_json, table

if TYPE_CHECKING:
    import pandas as pd

FUSIONS = ("last", "linear", "concat", "attention")
TASKS: dict[str, dict[str, Any]] = {
    "intent": {"task": "classification", "pool": "mean", "epochs": (20,)},
    "slots": {"task": "tagging", "head": "crf", "epochs": (30,)},
}
SEEDS = 3


@click.command()
@click.option("--keep", type=FOLDER, help="Keep the store and the runs in this folder.")
@JSON_OPTION
def demo(keep: Path | None, as_json: bool) -> None:
    """Encode the bundled corpus with the bundled encoder and compare four fusions on two tasks."""
    from fusionkit.encoder import load_encoder

    encoder = load_encoder("minilm", device="cpu", words=True)
    with tempfile.TemporaryDirectory() as temporary:
        encode_seconds, frame = encode_and_fit(keep or Path(temporary), encoder)
    if as_json:
        runs = json.loads(frame.to_json(orient="records"))  # NaN is no JSON
        print_json({"encode_seconds": encode_seconds, "encoder_parameters": encoder.parameters, "runs": runs})
        return
    print_comparison(frame, encoder.parameters)
    total = float(frame["seconds"].sum())
    out().print(
        f"\nencoded once in {encode_seconds:.1f} s; {len(frame)} heads trained over it in {total:.1f} s "
        f"({total / len(frame):.1f} s each); the encoder has {encoder.parameters:,} parameters"
    )
    if keep is not None:
        out().print(f"kept in {keep}: try `fusionkit info {keep / 'travel-desk.store'}`")


def encode_and_fit(folder: Path, encoder: Any) -> tuple[float, pd.DataFrame]:
    """Seconds to encode the corpus once (rows of tokens serve both tasks), and a row for each head fitted over it."""
    import pandas as pd
    import torch

    from fusionkit.cli.sweep_table import SweepTable
    from fusionkit.encode import encode
    from fusionkit.fit import RunsFolder, expand, fit
    from fusionkit.runs.folder import flat_record
    from fusionkit.sources import guess_columns, open_source
    from fusionkit.specs import EncodeSpec
    from fusionkit.store import open_store

    source = open_source(str(travel_desk("en")))
    columns = guess_columns(source)
    began = time.perf_counter()
    with ProgressBars() as bars:
        encode(source, columns, folder / "travel-desk.store", EncodeSpec(rows="tokens"), encoder, progress=bars)
    encode_seconds = time.perf_counter() - began
    store = open_store(folder / "travel-desk.store")
    specs = [
        spec
        for label, choices in TASKS.items()
        for spec in expand(store, label=label, fusions=FUSIONS, seeds=SEEDS, **choices)
    ]
    torch.set_num_threads(1)  # as `fusionkit fit` does: these heads are too small for more
    with SweepTable(specs) as progress:
        records = fit(store, specs, RunsFolder(folder / "runs"), progress)
    return encode_seconds, pd.DataFrame([flat_record(record) for record in records])


def print_comparison(frame: pd.DataFrame, encoder_parameters: int) -> None:
    from fusionkit.cli.format_cells import score_text
    from fusionkit.fit import summarise

    rows = []
    for row in summarise(frame, ["label", "fusion", "head"]).to_dict(orient="records"):
        run = frame[(frame["label"] == row["label"]) & (frame["fusion"] == row["fusion"])].iloc[0]
        fusion, head = int(run["fusion_parameters"]), int(run["head_parameters"])
        score = f"{score_text(row['mean'], row['std'])} {row['metric']}"
        share = f"{(fusion + head) / encoder_parameters:.2%}"
        rows.append(
            [row["label"], row["fusion"], score, f"{fusion:,}", f"{head:,}", share, f"{row['seconds_alone']:.1f}"]
        )
    columns = [("task", "left"), ("fusion", "left")]
    columns += [(name, "right") for name in ("test, 3 seeds", "fusion", "head params", "of encoder", "s alone")]
    out().print(table("travel-desk (English), frozen all-MiniLM-L6-v2", columns, rows))
