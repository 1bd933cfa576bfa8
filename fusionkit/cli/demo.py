"""``fusionkit demo``: the bundled corpus and encoder, four fusions, two tasks, five seeds."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusionkit.bundled import travel_desk
from fusionkit.cli.console import FOLDER, JSON_OPTION, out, print_json, table
from fusionkit.errors import UsageError
from fusionkit.printable import as_word

if TYPE_CHECKING:
    import pandas as pd

    from fusionkit.runs.example_scores import ExampleScores
    from fusionkit.store import Store

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
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        store, encode_seconds = encode_corpus(folder / "travel-desk.store")
        frame, fit_seconds = fit_heads(store, folder / "runs")
        parameters = store.manifest["encoder"]["parameters"]
        if as_json:
            from fusionkit.runs.tables.format_cells import json_rows

            runs = json_rows(frame)
            print_json({"encode_seconds": encode_seconds, "encoder_parameters": parameters, "runs": runs})
            return
        from fusionkit.runs.example_scores import ExampleScores
        from fusionkit.runs.folder import RunsFolder

        print_comparison(frame, ExampleScores(RunsFolder(folder / "runs").answers))
        out().print(
            f"\nencoded once in {encode_seconds:.1f} s; {len(frame)} heads trained over it in {fit_seconds:.1f} s; "
            f"the encoder has {parameters:,} parameters"
        )
        if keep is not None:
            out().print(f"kept in {keep}: try `fusionkit info {as_word(keep / 'travel-desk.store')}`", soft_wrap=True)
        out().print(write_page(folder / "runs", PAGE if keep is None else keep / PAGE))


def encode_corpus(store: Path) -> tuple[Store, float]:
    """Encode the corpus; rows of tokens serve both tasks. Returns the store, and the seconds without the imports."""
    from fusionkit.cli.encode import encode_into
    from fusionkit.store import open_store

    report = encode_into(store, {"source": str(travel_desk("en")), "rows": "tokens"}, "cpu", None)
    return open_store(store), report.seconds


def fit_heads(store: Store, runs: Path) -> tuple[pd.DataFrame, float]:
    """Train the heads; returns a row per head, and the seconds."""
    import pandas as pd

    from fusionkit.cli.commands import CliCommands
    from fusionkit.fit import expand
    from fusionkit.fit.sweep.blocks import Sweep
    from fusionkit.runs.record import flat_record

    specs = [
        spec
        for label, choices in TASKS.items()
        for spec in expand(store, label=label, fusions=FUSIONS, seeds=SEEDS, **choices)
    ]
    commands = CliCommands(None, workers=None, threads=1, device="cpu", retry_failed=False, log_to=())
    began = time.perf_counter()
    records = commands.train(store, Sweep(specs, [], []), runs)
    return pd.DataFrame([flat_record(record) for record in records]), time.perf_counter() - began


def print_comparison(frame: pd.DataFrame, answers: ExampleScores) -> None:
    """Print each fusion's mean over the seeds, its paired difference to the last layer alone, and a head's cost."""
    from fusionkit.runs.comparison.compare import compare
    from fusionkit.runs.summary import RunGroups
    from fusionkit.runs.tables.format_cells import rows_of, texts_of

    rows = []
    for row in rows_of(compare(RunGroups(frame, ["label", "fusion"], answers=answers), "last")):
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
