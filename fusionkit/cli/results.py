"""``fusionkit results``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fusionkit.cli.console import FOLDER, log, out, print_json, say_at_once
from fusionkit.cli.options.flags import flags, with_all
from fusionkit.errors import UsageError
from fusionkit.options.comparison import OF_BASELINES, OF_STUDIES, Comparison
from fusionkit.options.entry import options_of

FORMATS = ("table", "csv", "json", "latex")


@click.command()
@click.argument("runs", type=FOLDER)
@with_all(flags((entry for name, entry in options_of(Comparison).items() if name not in OF_STUDIES), {}))
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), default="table", show_default=True, help="Form of the output."
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.pass_context
def results(context: click.Context, /, runs: Path, kind: str, as_json: bool, **how: Any) -> None:
    """Show mean, standard deviation and 95 % interval of the runs in RUNS, group by group.

    A mean is over seeds and draws. Every other option that differs among the runs of a group becomes a column, unless
    --average names it. With --choose-by validation a group has only its best rate, epochs and layers, by the mean
    validation score; options that --by names are not chosen. Without it each of them is a group.

    With --baseline the table has each group's paired difference to it: two runs are a pair if they agree in everything
    else, seeds included. Intervals and p-values generalise to other seeds and other test examples, if the answers on
    test were kept (`fit` keeps them). --over seeds takes the test examples as given, --over examples the runs. A table
    leaves out columns that the terminal is too narrow for; the other formats have all.
    """
    chosen = context.get_parameter_source("kind") == ParameterSource.COMMANDLINE
    if as_json and chosen and kind != "json":
        raise UsageError(
            "--json and --format name two formats",
            expected="one of the two",
            received=f"--json and --format {kind}",
            remedy="leave one of them out",
        )
    how["baseline"] = how["baseline"] or None
    if how["baseline"] is None:
        for name in OF_BASELINES:
            if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
                raise UsageError(f"--{name} compares nothing without a baseline", remedy="name one: --baseline last")
    say_at_once(f"reading the runs in {runs}")
    from fusionkit.cli.tables.summary_table import summary_table
    from fusionkit.runs.example_scores import ExampleScores
    from fusionkit.runs.folder import RunsFolder
    from fusionkit.runs.summary import NOTES
    from fusionkit.runs.tables.comparison_notes import comparison_notes
    from fusionkit.runs.tables.format_cells import json_rows
    from fusionkit.runs.tables.paper_tables import csv_text, latex
    from fusionkit.runs.tabulate import tabulate

    folder = RunsFolder(runs)
    frame = folder.frame(how.pop("metric"), each_test=True)
    summary = tabulate(frame, **how, answers=ExampleScores(folder.answers))
    notes = [*summary.attrs[NOTES], *(comparison_notes(summary) if how["baseline"] is not None else [])]
    kind = "json" if as_json else kind
    if kind == "latex":
        click.echo(latex(summary, notes))
        return
    if kind == "json":
        print_json(json_rows(summary))
    elif kind == "csv":
        click.echo(csv_text(summary), nl=False)
    else:
        out().print(summary_table(summary))
    for note in notes:
        # To standard output with a table for people, to standard error with output for programs.
        (out() if kind == "table" else log()).print(note)
