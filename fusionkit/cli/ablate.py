"""``fusionkit ablate``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from fusionkit.cli.console import JSON_OPTION, PLACE, log, out, print_json, table
from fusionkit.cli.options.completion import folders
from fusionkit.cli.options.heads_options import code_option, device_option
from fusionkit.errors import UsageError
from fusionkit.plural import counted

if TYPE_CHECKING:
    from fusionkit.io.places import Place
    from fusionkit.runs.ablations import Ablation

CELL = 7  # columns of a number, like -12.3, with the space between


@click.command()
@click.argument("run", metavar="RUN", shell_complete=folders)
@click.option("--split", type=click.Choice(["validation", "test"]), default="validation", show_default=True,
              help="The split that is scored.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Score only N validation examples of each task.")
@click.option(
    "--store",
    "stores",
    multiple=True,
    type=PLACE,
    help="A store or a folder of stores, if not beside the run.",
)
@device_option
@code_option
@JSON_OPTION
def ablate(
    run: str,
    split: str,
    limit: int | None,
    stores: tuple[Place, ...],
    device: str,
    trust_remote_code: bool,
    as_json: bool,
) -> None:
    """Score RUN without the adapters of every span of layers; nothing is trained again.

    RUN is a run of a method that adds parts to layers. The table has the share of the score that is lost without the
    parts of a span. It is saved beside the run, and `fusionkit report` draws it.
    """
    from fusionkit.runs.find_run import find_run
    from fusionkit.store.nearby import find_stores, refuse_storeless  # loads torch
    from fusionkit.tuning.ablation import ablate as score_without  # loads torch and transformers

    places = find_run(run)
    if len(places) > 1:
        raise UsageError(f"{run} holds {len(places)} runs", expected="one", remedy="name one of them, RUNS/DIGEST")
    if split == "test" and limit is not None:
        raise UsageError("--limit applies to validation only", received="--split test", remedy="leave one of them out")
    refuse_storeless(stores, planned=True)
    folder = places[0]
    log().print(f"scoring {folder} on {split} without the parts of every span of layers")
    there = find_stores([folder.parent], stores, planned=True)
    found = score_without(folder, there, split, limit, log().print, trust_remote_code, device)
    if as_json:
        print_json(asdict(found))
        return
    for task in found.whole:
        _print(found, task)


def _print(found: Ablation, task: str) -> None:
    from fusionkit.runs.ablations import fall_text

    falls, corner = found.falls(task), "first \\ last"
    name = f"{task}: " if task else ""
    told = (
        f"{found.metrics[task]} {found.whole[task]:.4f} with all, {counted(found.examples, 'example')} of {found.split}"
    )
    title: str | None = f"{name}{told}; % of it lost without layers first … last"
    fitting = max((out().width - len(corner)) // CELL, 1)
    for start in range(0, len(found.layers), fitting):
        shown = found.layers[start : start + fitting]
        columns = [(corner, "left"), *((str(layer), "right") for layer in shown)]
        rows = [[str(a), *(fall_text(falls[a, b], 1) if (a, b) in falls else "" for b in shown)] for a in found.layers]
        out().print(table(title, columns, rows))
        title = None
