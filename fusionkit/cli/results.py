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
@click.option("--by", multiple=True, help="Column to group by; several times. [default: what differs]")
@click.option("--average", multiple=True, help="Column to average over, for instance data; several times.")
@click.option("--metric", help="Score to show, e.g. macro_f1, matthews, recall. [default: the task's own]")
@click.option(
    "--split",
    type=click.Choice(SHOWN_SPLITS),
    default="test",
    show_default=True,
    help="The split whose score is shown.",
)
@click.option("--baseline", help="Group to compare with: a value of fusion or of a --by column, or COLUMN=VALUE,….")
@click.option(
    "--over",
    type=click.Choice(OVER),
    help="What intervals and p-values generalise to: other seeds, other test examples. [default: both, if possible]",
)
@click.option(
    "--block",
    type=click.Choice(BLOCKS),
    default="data_seed",
    show_default=True,
    help="The unit that differences are resampled by; data generalises to other data sets.",
)
@click.option(
    "--interval", type=click.Choice(INTERVALS), default="t", show_default=True, help="How 95 % intervals are computed."
)
@click.option("--simultaneous", is_flag=True, help="Make the intervals of differences hold for all of them at once.")
@click.option("--test", type=click.Choice(TESTS), help="Test of paired differences over seeds. [default: permutation]")
@click.option(
    "--correction", type=click.Choice(CORRECTIONS), help="Correction of p-values for many comparisons. [default: holm]"
)
@click.option(
    "--pareto", type=click.Choice(COSTS), help="Mark groups that are better than all cheaper ones, by this cost."
)
@click.option("--ranks", is_flag=True, help="Rank groups; groups that paired tests do not tell apart share ranks.")
@click.option(
    "--choose-by", type=click.Choice(CHOOSERS), help="Show only the rates, epochs and layers that validation chose."
)
@click.option("--format", "kind", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
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
    """Show mean, standard deviation and 95 % interval of the runs in RUNS, group by group.

    A mean is over seeds and draws. Every other option that differs among the runs of a group becomes a column, unless
    --average names it. With --choose-by validation a group has only its best rate, epochs and layers, by the mean
    validation score; options that --by names are not chosen. Without it each of them is a group.

    With --baseline the table has each group's paired difference to it: two runs are a pair if they agree in everything
    else, seeds included. Intervals and p-values generalise to other seeds and other test examples, if the answers on
    test were kept (`fit` keeps them). --over seeds takes the test examples as given, --over examples the runs. A table
    leaves out columns that the terminal is too narrow for; the other formats have all.
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
