"""``fusionkit demo``: the bundled corpus and encoder, four fusions, two tasks, five seeds."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusionkit.bundled import travel_desk
from fusionkit.cli.console import FOLDER, JSON_OPTION, ProgressBars, out, print_json, table
from fusionkit.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from fusionkit.runs.example_scores import ExampleScores

FUSIONS = ("last", "linear", "concat", "attention")
TASKS: dict[str, dict[str, Any]] = {
    "slots": {"task": "tagging", "head": "crf", "epochs": (30,)},
    "intent": {"task": "classification", "pool": "mean", "epochs": (20,)},
}
SEEDS = 5
PAGE = Path("travel-desk.html")


@click.command()
@click.option("--keep", type=FOLDER, help="Keep the store and the runs in this folder.")
@JSON_OPTION
def demo(keep: Path | None, as_json: bool) -> None:
    """Encode the bundled corpus with the bundled encoder and compare four fusions on two tasks."""
    from fusionkit.encoder import load_encoder

    encoder = load_encoder("minilm", device="cpu", words=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        encode_seconds, fit_seconds, frame = encode_and_fit(folder, encoder)
        if as_json:
            runs = json.loads(frame.to_json(orient="records"))  # NaN is no JSON
            print_json({"encode_seconds": encode_seconds, "encoder_parameters": encoder.parameters, "runs": runs})
            return
        from fusionkit.runs.example_scores import ExampleScores
        from fusionkit.runs.folder import RunsFolder

        print_comparison(frame, ExampleScores(RunsFolder(folder / "runs").answers))
        out().print(
            f"\nencoded once in {encode_seconds:.1f} s; {len(frame)} heads trained over it in {fit_seconds:.1f} s; "
            f"the encoder has {encoder.parameters:,} parameters"
        )
        if keep is not None:
            out().print(f"kept in {keep}: try `fusionkit info {keep / 'travel-desk.store'}`")
        out().print(write_page(folder / "runs", PAGE if keep is None else keep / PAGE))


def encode_and_fit(folder: Path, encoder: Any) -> tuple[float, float, pd.DataFrame]:
    """Encode once (rows of tokens serve both tasks) and fit; returns the seconds of each, and a row per head."""
    import pandas as pd
    import torch

    from fusionkit.cli.tables.sweep_table import SweepTable
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
    began = time.perf_counter()
    with SweepTable(specs) as progress:
        records = fit(store, specs, RunsFolder(folder / "runs"), progress, workers=None)
    fit_seconds = time.perf_counter() - began
    return encode_seconds, fit_seconds, pd.DataFrame([flat_record(record) for record in records])


def print_comparison(frame: pd.DataFrame, answers: ExampleScores) -> None:
    """Print each fusion's mean over the seeds, its paired difference to the last layer alone, and a head's cost."""
    from fusionkit.cli.tables.format_cells import rows_of, texts_of
    from fusionkit.runs.comparison.compare import compare

    rows = []
    for row in rows_of(compare(frame, "last", ["label", "fusion"], answers=answers)):
        texts = texts_of(row)
        runs = frame[(frame["label"] == row["label"]) & (frame["fusion"] == row["fusion"])]
        score, parameters = f"{texts['score']} {row['metric']}", f"{int(runs['fusion_parameters'].iloc[0]):,}"
        differences = [texts["difference"], texts["difference_interval"]]
        rows.append([row["label"], row["fusion"], score, *differences, parameters, texts["seconds"]])
    columns = [("task", "left"), ("fusion", "left")]
    names = (f"test, {frame['data_seed'].nunique()} seeds", "Δ to last", "95 % of Δ", "parameters", "s alone")
    out().print(
        table(
            "travel-desk, frozen all-MiniLM-L6-v2; intervals over seeds and test sentences",
            [*columns, *((n, "right") for n in names)],
            rows,
        )
    )


def write_page(runs: Path, page: Path) -> str:
    """Write the report; returns a line with its path, or how to install the extra `report`."""
    from fusionkit.report import write_report

    try:
        return f"report: {write_report([runs], page).page}"
    except UsageError as error:
        return f"no report: {error.remedy}"
