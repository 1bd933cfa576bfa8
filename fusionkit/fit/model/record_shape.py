"""The expected shape of the description of a trained head: a run's record, or the ``config.json`` of an exported head.

Such a file may come from anywhere. Each field that loading relies on is checked here, with bounds, before anything is
made from it: a width of 10⁹ would be a matrix of 10¹⁸ numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fusionkit.specs import COMPUTE_DTYPES, MASKED, PAIR_FORMS, ROWS

WIDEST, MOST_LAYERS, MOST_CLASSES, LONGEST, LONGEST_TEXT = 1 << 16, 1 << 10, 1 << 20, 1 << 22, 1 << 12
MOST_SOURCES = 16


@dataclass(frozen=True)
class Shape:
    """A kind of value: whether a value is one, and its name for errors."""

    name: str
    fits: Callable[[Any], bool]


def integer(low: int, high: int) -> Shape:
    return Shape(f"a whole number from {low:,} to {high:,}", lambda value: type(value) is int and low <= value <= high)


def one_of(choices: Collection[Any]) -> Shape:
    return Shape(f"one of {', '.join(map(str, choices))}", lambda value: value in choices)


def list_of(shape: Shape, most: int, least: int = 0) -> Shape:
    def fits(value: Any) -> bool:
        return type(value) is list and least <= len(value) <= most and all(map(shape.fits, value))

    return Shape(f"a list of {least} to {most:,}, each {shape.name}", fits)


def or_none(shape: Shape) -> Shape:
    return Shape(f"{shape.name}, or null", lambda value: value is None or shape.fits(value))


TEXT = Shape("a text", lambda value: type(value) is str and len(value) <= LONGEST_TEXT)
BLOCK = Shape("an object", lambda value: type(value) is dict)
LABELS = list_of(TEXT, MOST_CLASSES)
SOURCE = Shape(
    "a class's name, module and hash", lambda value: type(value) is dict and {"name", "module", "sha256"} <= {*value}
)
# The path of a field → its shape; a field whose path ends in "?" may be absent.
FIELDS: Mapping[str, Shape] = {
    "spec": BLOCK,
    "spec.method": TEXT,
    "spec.task": TEXT,
    "spec.label": TEXT,
    "spec.fusion": TEXT,
    "spec.head": TEXT,
    "encoder": TEXT,
    "rows": one_of((*ROWS, MASKED)),
    "layers": list_of(integer(0, MOST_LAYERS), MOST_LAYERS, least=1),
    "labels": LABELS,
    "default": TEXT,
    "hidden": integer(1, WIDEST),
    "sides": one_of((1, 2)),
    "weights_sha256": TEXT,
    "data": TEXT,
    "scores": BLOCK,
    "over_seeds?": BLOCK,
    "floors?": BLOCK,
    "data_identity": TEXT,
    "others?": or_none(BLOCK),
    "sources?": or_none(list_of(SOURCE, MOST_SOURCES)),
    "encoding": BLOCK,
    "encoding.compute_dtype": one_of(COMPUTE_DTYPES),
    "encoding.max_length": integer(1, LONGEST),
    "encoding.pair_as": one_of(PAIR_FORMS),
    "encoding.columns": BLOCK,
    "encoding.columns.text": or_none(TEXT),
    "encoding.columns.pair": or_none(TEXT),
    "encoding.columns.tokens": or_none(TEXT),
    "encoding.encoder": BLOCK,
    "encoding.encoder.weights": TEXT,
    "encoding.encoder.tokenizer": TEXT,
    "encoding.encoder.revision?": or_none(TEXT),
}
OF_OTHERS: Mapping[str, Shape] = {"labels": LABELS, "default": TEXT, "sides?": one_of((1, 2)), "data?": TEXT}
OF_ENCODING = {way: shape for way, shape in FIELDS.items() if way.startswith("encoding")}


def misfit(record: Mapping[str, Any], fields: Mapping[str, Shape] = FIELDS) -> tuple[str, str] | None:
    """What is wrong with a record: what was expected and what was received; None where all fields fit."""
    for way, shape in fields.items():
        value: Any = record
        names, optional = way.rstrip("?").split("."), way.endswith("?")
        for name in names:
            value = value.get(name, ...) if isinstance(value, Mapping) else ...
        if value is ... and optional:
            continue
        if value is ... or not shape.fits(value):
            received = "nothing" if value is ... else repr(value)[:60]
            return f"{'.'.join(names)!r}: {shape.name}", received
    if "others?" in fields:
        for name, other in (record.get("others") or {}).items():
            own = OF_ENCODING if isinstance(other, Mapping) and "encoding" in other else {}
            if not isinstance(other, Mapping) or misfit(other, {**OF_OTHERS, **own}):
                return f"'others.{name}': labels and their default", repr(other)[:60]
    return None
