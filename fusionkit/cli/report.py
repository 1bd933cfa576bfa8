"""``fusionkit report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusionkit.cli.console import FOLDER, JSON_OPTION, PLACE, log, out, print_json
from fusionkit.plural import counted

if TYPE_CHECKING:
    from fusionkit.io.places import Place


@click.command()
@click.argument("runs", nargs=-1, required=True, type=FOLDER)
@click.option("--out", "page", required=True, type=FOLDER, metavar="FILE", help="The page to write, report.html.")
@click.option("--figures", type=FOLDER, help="Folder for every figure: SVG, PNG, CSV, Vega-Lite.")
@click.option("--baseline", help="Fusion, or fusion with its method, to compare with. [default: last]")
@click.option("--store", "stores", multiple=True, type=PLACE, help="A store or a folder of stores, if not beside RUNS.")
@click.option("--title", help="Title of the page.")
@click.option("--about", help="A paragraph below the title.")
@JSON_OPTION
def report(
    runs: tuple[Path, ...], page: Path, figures: Path | None, stores: tuple[Place, ...], as_json: bool, **how: Any
) -> None:
    """Write a page of the runs in RUNS: tables, charts and a look inside, one file that opens offline.

    Sentences with their layer weights, predictions and confusions need the runs' stores. They are looked for beside
    RUNS and beside the folder that RUNS lies in; --store names others.
    """
    from fusionkit.runs.folder import RunsFolder

    for path in runs:
        RunsFolder(path).refuse_empty()
    log().print(f"reading the runs in {', '.join(map(str, runs))}")
    from fusionkit.report import write_report  # loads torch
    from fusionkit.store.nearby import refuse_storeless

    refuse_storeless(stores)
    facts = write_report(runs, page, figures=figures, stores=stores, **how)
    if as_json:
        print_json({
            "page": str(facts.page), "bytes": facts.bytes, "runs": facts.runs,
            "figures": [str(path) for path in facts.figures], "left_out": facts.left_out,
        })  # fmt: skip
        return
    out().print(f"{counted(facts.runs, 'run')} → {facts.page}, {facts.bytes / 1e6:.1f} MB")
    if facts.figures:
        out().print(f"{counted(len(facts.figures), 'file')} of figures → {figures}")
    for told in facts.left_out:
        log().print(f"left out: {told}")
