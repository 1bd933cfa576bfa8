"""``fusionkit results``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fusionkit.cli.console import FOLDER, log, out, print_json, say_at_once
from fusionkit.errors import UsageError
from fusionkit.names import BLOCKS, CHOOSERS, CORRECTIONS, COSTS, INTERVALS, OVER, SHOWN_SPLITS, TESTS
from fusionkit.plural import counted

FORMATS = ("table", "csv", "json", "latex")


@click.command()
@click.argument("runs", type=FOLDER)
@click.option("--by", multiple=True, help="Column to group by; give it several times. [default: what differs]")
@click.option("--average", multiple=True, help="Column to average over, data for instance; give it several times.")
@click.option("--metric", help="Score to show, e.g. macro_f1, matthews, recall. [default: the task's own]")
@click.option(
    "--split", type=click.Choice(SHOWN_SPLITS), default="test", show_default=True, help="Whose score to show."
)
@click.option("--baseline", help="What to compare with: a value of a --by column (of fusion), or COLUMN=VALUE,….")
@click.option(
    "--over", type=click.Choice(OVER), help="What intervals and p speak of: others of these. [default: both, if it can]"
)
@click.option(
    "--block",
    type=click.Choice(BLOCKS),
    default="data_seed",
    show_default=True,
    help="What differences are drawn anew by; data speaks of other data sets.",
)
@click.option("--interval", type=click.Choice(INTERVALS), default="t", show_default=True, help="95 % intervals.")
@click.option("--simultaneous", is_flag=True, help="Intervals of differences that hold for all of them together.")
@click.option("--test", type=click.Choice(TESTS), help="Of paired differences over seeds. [default: permutation]")
@click.option("--correction", type=click.Choice(CORRECTIONS), help="Of all p-values together. [default: holm]")
@click.option("--pareto", type=click.Choice(COSTS), help="Mark groups that are better than all that cost less of this.")
@click.option("--ranks", is_flag=True, help="Rank groups as far as paired tests tell them apart.")
@click.option("--choose-by", type=click.Choice(CHOOSERS), help="What chooses among several rates, epochs and layers.")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def results(
    runs: Path,
    by: tuple[str, ...],
    average: tuple[str, ...],
    metric: str | None,
    split: str,
    baseline: str | None,
    over: str | None,
    block: str,
    interval: str,
    simultaneous: bool,
    test: str | None,
    correction: str | None,
    pareto: str | None,
    ranks: bool,
    choose_by: str | None,
    kind: str,
    as_json: bool,
) -> None:
    """Mean, standard deviation and 95 % interval of the runs in RUNS, group by group.

    A mean is over seeds and draws. What else differs among runs of one group becomes a column, unless --average names
    it. With --choose-by validation the best of several rates, epochs and layers counts: of runs that agree in all else
    the setting with the best mean validation score; options behind --by are not chosen. Without it each setting is a
    group.

    With --baseline also the paired difference of each group to it: runs are pairs that agree in everything else, seeds
    included. Intervals and p-values speak of other seeds and other test examples, where the answers on test were kept
    (`fit` keeps them); --over seeds holds the test examples fixed, --over examples the runs. A table leaves out what
    the terminal is too narrow for; the other formats have everything.
    """
    compared = {"--test": test, "--correction": correction, "--simultaneous": simultaneous, "--block": block == "data"}
    for name, given in compared.items():
        if given and not baseline:
            raise UsageError(f"{name} compares nothing without a baseline", remedy="name one: --baseline last")
    say_at_once(f"reading the runs in {runs}")
    from fusionkit.cli.tables.comparison_notes import comparison_notes
    from fusionkit.cli.tables.paper_tables import csv_text, latex
    from fusionkit.cli.tables.summary_table import summary_table
    from fusionkit.runs.example_scores import ExampleScores
    from fusionkit.runs.folder import RunsFolder
    from fusionkit.runs.summary import NOTES
    from fusionkit.runs.tabulate import tabulate

    folder = RunsFolder(runs)
    frame = folder.frame(metric, each_test=True)
    summary = tabulate(
        frame, by, split=split, choose_by=choose_by, baseline=baseline or None, average=average, over=over, block=block,
        interval=interval, simultaneous=simultaneous, test=test, correction=correction or "holm", pareto=pareto,
        ranks=ranks, answers=ExampleScores(folder.answers),
    )  # fmt: skip
    notes = [*summary.attrs[NOTES], *(comparison_notes(summary) if baseline else [])]
    if stopped := frame.loc[frame["status"] == "stopped", "digest"].nunique():
        notes.append(f"{counted(stopped, 'run')} stopped early by `fit --halving`: left out")
    kind = "json" if as_json else kind
    if kind == "latex":
        click.echo(latex(summary, notes))
        return
    if kind == "json":
        print_json(json.loads(summary.to_json(orient="records")))
    elif kind == "csv":
        click.echo(csv_text(summary), nl=False)
    else:
        out().print(summary_table(summary))
    for note in notes:
        # To standard output with a table for people, to standard error with output for programs.
        (out() if kind == "table" else log()).print(note)
