"""Input and output of ``predict``: runs and texts, examples in blocks, answers as cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from fusionkit.cli.console import log, out, print_json, table
from fusionkit.errors import DataError, UsageError
from fusionkit.exported import find_heads
from fusionkit.printable import as_word
from fusionkit.sources import Columns, open_source, prepared

if TYPE_CHECKING:
    from fusionkit.predict import Answer, Prediction, Predictor

TEXT, GAP = 20, 2  # the least characters for a text in a table, and those between columns
REMEDY = "a text with a slash, or a second hub id, needs --input"
Block = tuple[list[Any], list[str] | None]


def runs_and_texts(given: Sequence[str], no_texts: bool = False) -> tuple[list[str], list[str]]:
    """Split the arguments into the runs, and the texts after them.

    Args:
        no_texts: all are runs. Else only the first can be a hub id: a later one may be a text, whose author must not
            choose what is downloaded.
    """
    places: list[str] = []
    for at, place in enumerate(given):
        try:
            find_heads(place, hub=no_texts or not places)
        except UsageError as error:
            if not places:
                raise
            # A misspelt run must not be taken for a text.
            if "/" in place and not any(letter.isspace() for letter in place):
                raise error.at(f"argument {at + 1}", f"{error.remedy}; {REMEDY}") from error
            return places, list(given[at:])
        except OSError:  # too long for a name
            return places, list(given[at:])
        places.append(place)
    return places, []


def blocks_of(predictor: Predictor, lines: Any) -> Iterator[Block]:
    """Texts, words or pairs from lines; empty lines are left out."""
    if predictor.takes == "words":
        log().print("the runs were trained over words: texts are split at white space")
    from fusionkit.predict import BLOCK

    held: list[str] = []
    try:
        for line in lines:
            held += [line.rstrip("\r\n")] if line.strip() else []
            if len(held) == BLOCK:
                yield _block(predictor, held)
                held = []
    except UnicodeDecodeError as error:
        raise DataError("standard input is not UTF-8 text", received=str(error)) from error
    if held:
        yield _block(predictor, held)


def _block(predictor: Predictor, lines: list[str]) -> Block:
    if predictor.takes == "words":
        return [line.split() for line in lines], None
    if predictor.takes == "texts":
        return lines, None
    halves = [line.split("\t") for line in lines]
    if wrong := [line for line, parts in zip(lines, halves, strict=True) if len(parts) != 2]:
        raise UsageError(
            "the runs were trained over pairs",
            expected="two texts with a tab between them",
            received=repr(wrong[0][:60]),
            remedy="write the tab, or give a file with two columns by --input",
        )
    return [one for one, _ in halves], [other for _, other in halves]


def blocks_of_file(
    predictor: Predictor, path: str, named: dict[str, str | None], columns: tuple[str, ...] | None
) -> Iterator[Block]:
    """The examples of a file.

    Args:
        named: the columns that the user names, by role. columns: the names of a CoNLL file's columns.
    """
    source = open_source(path, columns=columns)
    [(split, examples)] = source.splits.items()
    from fusionkit.evaluation.over_source import input_columns  # loads torch

    inputs = input_columns(predictor, source, named)
    learned = dict.fromkeys(run.spec.label for run in predictor.runs.values())
    if told := [name for name in learned if name in examples.column_names]:
        evaluated = f"`fusionkit evaluate RUN… {as_word(path)}` scores these heads on them"
        log().print(f"{path} has labels ({', '.join(told)}): {evaluated}")
    chosen = Columns(**inputs)  # type: ignore[arg-type]
    log().print(f"columns: {chosen}")
    ready, _ = prepared(source, chosen)
    for batch in ready.splits[split].batches():
        first, *second = (batch.column(column).to_pylist() for column in inputs.values())
        yield first, second[0] if second else None


def print_answers(
    predictor: Predictor, first: list[Any], second: list[str] | None, found: list[Prediction], as_json: bool
) -> None:
    shown = [text if isinstance(text, str) else " ".join(text) for text in first]
    if as_json:
        for at, prediction in enumerate(found):
            given = {"text": shown[at]} if second is None else {"text": shown[at], "pair": second[at]}
            print_json({**given, **prediction.to_dict()}, indent=None)
        return
    if second is not None:
        shown = [f"{one} | {other}" for one, other in zip(shown, second, strict=True)]
    columns = [("text", "left"), *((name, "left") for name in predictor.runs)]
    cells = [[_cell(prediction[name]) for name in predictor.runs] for prediction in found]
    rows = [[text, *answers] for text, answers in zip(shown, cells, strict=True)]
    heads = zip(predictor.runs, *cells, strict=True)
    if (
        len(predictor.runs) > 1 and TEXT + sum(GAP + max(map(cell_len, head)) for head in heads) > out().width
    ):  # one line per head, so that names are not broken
        columns = [("text", "left"), ("head", "left"), ("answer", "left")]
        rows = [
            ["" if at else text, name, answer]
            for text, answers in zip(shown, cells, strict=True)
            for at, (name, answer) in enumerate(sorted(zip(predictor.runs, answers, strict=True)))
        ]
    out().print(table(None, columns, rows))


def _cell(answer: Answer) -> str:
    from fusionkit.predict import Label, Labels, Number

    if isinstance(answer, Number):
        return f"{answer.value:.3g}"
    if isinstance(answer, Label):
        return answer.label + (f" {answer.probabilities[answer.label]:.2f}" if answer.probabilities else "")
    if isinstance(answer, Labels):
        return "; ".join(f"{name} {answer.probabilities[name]:.2f}" for name in answer.labels) or "–"
    if answer.spans is not None:
        return "; ".join(f"{span.type}: {span.text}" for span in answer.spans) or "–"
    return " ".join(answer.tags)
