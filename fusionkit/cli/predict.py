"""``fusionkit predict``."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click

from fusionkit.cli.console import log
from fusionkit.cli.options.completion import files, folders
from fusionkit.cli.options.heads_options import column_options, loading_options
from fusionkit.errors import UsageError
from fusionkit.plural import counted


@click.command()
@click.argument("runs", metavar="RUN…", nargs=-1, required=True, shell_complete=folders)
@click.option(
    "--input",
    "given",
    shell_complete=files,
    help="A file of JSON lines, CSV, TSV, Parquet or CoNLL columns; - reads lines from standard input.",
)
@column_options
@click.option(
    "--takes",
    type=click.Choice(["texts", "pairs", "words"]),
    help="Kind of input. Of a run of several tasks over stores of their own only the tasks that read it answer. "
    "[default: the first task's]",
)
@loading_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, one per example.")
def predict(
    runs: tuple[str, ...],
    given: str | None,
    text: str | None,
    pair: str | None,
    tokens: str | None,
    columns: str | None,
    as_json: bool,
    **loading: Any,
) -> None:
    """Run the heads of RUN… over TEXT… or --input, with one pass of the encoder for all of them.

    RUN is a run's folder or the beginning of its name, a folder of runs (all that finished), or the folder of an
    exported head. The first RUN, and with --input each, may be a hub id. The first argument that is none of these
    begins the texts. For runs over words texts are split at white space; for runs over pairs a tab separates the two
    texts.
    """
    from fusionkit.cli.predict_io import blocks_of, blocks_of_file, print_answers, runs_and_texts
    from fusionkit.sources import column_names

    places, texts = runs_and_texts(runs, no_texts=given is not None)
    if bool(texts) == (given is not None):
        raise UsageError(
            "give texts after the runs, or --input" if not texts else "give texts or --input, not both",
            expected="one of the two",
            received="neither" if not texts else f"{texts[0][:60]!r} and --input {given}",
        )
    if given not in (None, "-") and not Path(given).expanduser().is_file():
        raise UsageError(f"{given} is no file", expected="a file, or - for standard input", remedy="check the path")
    roles = {"text": text, "pair": pair, "tokens": tokens}
    named = [f"--{name}" for name, value in {**roles, "columns": columns}.items() if value]
    if given in (None, "-") and named:
        raise UsageError(
            f"{named[0]} names a column of a file",
            expected="--input FILE beside it",
            received="texts on the command line" if given is None else "lines of standard input",
            remedy="leave it out, or write the texts into a file with columns",
        )
    names = column_names(columns)
    log().print(f"loading the heads in {', '.join(places)}")
    from fusionkit.encoder.lean_import import import_models

    import_models()
    from fusionkit.predict import load

    predictor = load(*places, **loading)
    if (passes := len(predictor.passes)) > 1:
        log().print(
            f"{passes} passes of an encoder over each text: runs that trained through it bring one of their own, and "
            "so does each task with weights of its own in it"
        )
    if predictor.left_out:
        log().print(f"no answer of {', '.join(predictor.left_out)}: they read other input; --takes chooses it")
    if given is None or given == "-":
        # In some locales sys.stdin itself reads bytes that are not UTF-8 as lone surrogates.
        lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig") if given else texts
        blocks = blocks_of(predictor, lines)
    else:
        blocks = blocks_of_file(predictor, given, roles, names)
    cut, number = 0, 0
    for first, second in blocks:
        found = predictor.predict(first, second, start=number)
        cut += sum(prediction.cut for prediction in found)
        print_answers(predictor, first, second, found, as_json)
        number += len(found)
    if not number:
        raise UsageError("there is nothing to predict", expected="a text or more", received="empty input")
    if cut:
        log().print(f"{cut} of {counted(number, 'text')} cut to {predictor.max_length} sub-tokens")
