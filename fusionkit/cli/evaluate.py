"""``fusionkit evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fusionkit.cli.console import FOLDER, JSON_OPTION, log, out, print_json
from fusionkit.cli.options.completion import files
from fusionkit.cli.options.heads_options import column_options, loading_options
from fusionkit.errors import UsageError
from fusionkit.plural import counted


@click.command()
@click.argument("heads", metavar="RUN|EXPORT…", nargs=-1, required=True, shell_complete=files)
@click.argument("data", metavar="SOURCE|STORE…", shell_complete=files)
@click.option("--split", help="train, validation or test. [default: test, else validation, else train]")
@click.option("--task", "tasks", multiple=True, metavar="NAME",
              help="Task to score, if a run has several over different stores; several times. "
              "[default: by the data]")  # fmt: skip
@click.option("--label", "labels", multiple=True, metavar="COLUMN|LEARNED=COLUMN",
              help="Column with the labels, if its name differs from training; several times.")  # fmt: skip
@column_options
@click.option("--config", help="Configuration of a hub data set.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Read only the first N examples of a source.")
@click.option("--errors", type=FOLDER, metavar="FILE", help="Write wrongly answered examples to this CSV file.")
@click.option(
    "--keep", is_flag=True, help="Over a store: save the answers on test beside the runs, for `results --over both`."
)
@loading_options
@JSON_OPTION
def evaluate(
    heads: tuple[str, ...],
    data: str,
    tasks: tuple[str, ...],
    labels: tuple[str, ...],
    text: str | None,
    pair: str | None,
    tokens: str | None,
    columns: str | None,
    errors: Path | None,
    keep: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Score trained heads on labelled data: scores, counts by class or entity type, confusions, wrong examples.

    RUN is what `fusionkit predict` takes; each may be a hub id. SOURCE is what `fusionkit encode` takes; it is encoded
    on the fly, in one pass for all heads. A STORE needs no encoder. With several runs the table has a line per run;
    with one run its counts follow. --json has everything for each run. A label that train lacks counts as an error.

    If a run has several tasks over different stores, the tasks that the data fit are scored. Name several STOREs to
    score all.
    """
    from fusionkit.io.places import place_of
    from fusionkit.sources import column_names
    from fusionkit.store import is_store

    names = column_names(columns)
    stored, before = is_store(place_of(data)), list(heads)
    given = [data]
    while stored and before and is_store(place_of(before[-1])):
        given.insert(0, before.pop())
    if not before:
        raise UsageError(
            "no run is given",
            expected="a run or an exported head in front of the stores",
            received=", ".join(given),
            remedy="name it first: fusionkit evaluate RUN STORE",
        )
    log().print(f"scoring the heads in {', '.join(before)} on {', '.join(given)}")
    if not stored:
        from fusionkit.encoder.lean_import import import_models

        import_models()
    from fusionkit.cli.tables.evaluate_tables import print_details, print_scores
    from fusionkit.evaluation.answers import mistakes_frame
    from fusionkit.evaluation.evaluate import evaluate as score
    from fusionkit.io.files import write_durably
    from fusionkit.runs.tables.paper_tables import csv_text

    if keep and not stored:
        raise UsageError(
            "--keep is for a store: the states that a run was scored on are there",
            received=data,
            remedy="name the store that the runs were fitted on, or leave --keep out",
        )
    inputs = {"text": text, "pair": pair, "tokens": tokens}
    found = score(*before, data=given, tasks=tasks, labels=_labels(labels), inputs=inputs, columns=names, **how)
    for note in dict.fromkeys(note for each in found for note in each.notes):
        log().print(note)
    if as_json:
        print_json([each.to_dict() for each in found])
    else:
        print_scores(out(), found)
        if len(found) == 1:
            print_details(out(), found[0])
    # After the scores, which a file that cannot be written would lose.
    if errors is not None:
        frame = mistakes_frame(found)
        write_durably(errors, csv_text(frame).encode())
        log().print(f"{counted(len(frame), 'wrong answer')} → {errors}")
    if keep:
        from fusionkit.evaluation.keep import keep_answers

        log().print(
            f"answers kept for {counted(len(found), 'run')}, for {keep_answers(found)} of them for the first time"
        )


def _labels(given: tuple[str, ...]) -> dict[str, str] | str | None:
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    named = dict(each.split("=", 1) for each in given if "=" in each)
    if len(named) < len(given):
        raise UsageError(
            "--label does not say which column is whose",
            expected="LEARNED=COLUMN, each once",
            received=" ".join(given),
            remedy="write --label intent=category --label slots=tags",
        )
    return named or None
