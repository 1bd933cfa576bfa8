"""The scores that papers print, as columns or lines of tables that repeat the papers' (pipelines/published.yaml)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fusionkit.errors import unknown_name

FILE = Path(__file__).with_name("published.yaml")
PAPER = "*paper*"


@cache
def published() -> dict[str, Any]:
    """By ``STUDY COMPARISON [SHOW]``, the names of a mark: ``of``, which names the paper's table, ``heads``, and
    ``values``: by the cells that identify a line, with spaces between them, the paper's numbers, one for each of the
    heads. With ``lines`` they stand in a line below ours.
    """
    read: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return read


def with_published(table: str, entry: Mapping[str, Any]) -> str:
    """A Markdown table with the paper's numbers, and a line below that names the paper's table.

    Numbers stand in a column behind each of the entry's heads; with ``lines`` in a line below each of its lines, where
    the table has the paper's methods side by side.

    Raises:
        UsageError: the entry names a head or a line that the table does not have.
    """
    rows = [
        [cell.strip() for cell in line.strip("|\n ").split(" | ")] for line in table.splitlines() if line[:1] == "|"
    ]
    rest = table.splitlines(keepends=True)[len(rows) :]
    heads, values = rows[0], dict(entry["values"])
    identify = len(next(iter(values)).split())
    names = [column for column, head in enumerate(heads) if head not in ("metric", "scored on")][:identify]
    of_line = [" ".join(row[column].replace("\\", "") for column in names) for row in rows[2:]]
    if strange := [name for name in values if name not in of_line]:
        raise unknown_name("line of the table", strange[0], of_line)
    shown = _lines if entry.get("lines") else _columns
    made = shown(rows, of_line, [_index(heads, head) for head in entry["heads"]], values)
    return "".join(f"| {' | '.join(row)} |\n" for row in made) + "".join(rest) + f"\n{PAPER}: {entry['of']}\n"


def _columns(
    rows: list[list[str]], of_line: Sequence[str], columns: Sequence[int], values: Mapping[str, Sequence[Any]]
) -> list[list[str]]:
    """A column behind each of ``columns``."""
    numbers = [[PAPER] * len(columns), ["---"] * len(columns)]
    numbers += [[_text(each) for each in values.get(name, [None] * len(columns))] for name in of_line]
    made = []
    for row, own in zip(rows, numbers, strict=True):
        line = list(row)
        for column, text in sorted(zip(columns, own, strict=True), reverse=True):
            line.insert(column + 1, text)
        made.append(line)
    return made


def _lines(
    rows: list[list[str]], of_line: Sequence[str], columns: Sequence[int], values: Mapping[str, Sequence[Any]]
) -> list[list[str]]:
    """A line below each line that has numbers."""
    made = rows[:2]
    for row, name in zip(rows[2:], of_line, strict=True):
        made.append(row)
        if name in values:
            own = dict(zip(columns, values[name], strict=True))
            made.append([PAPER if column == 0 else _text(own.get(column)) for column in range(len(row))])
    return made


def _text(number: Any) -> str:
    return "" if number is None else str(number)


def _index(heads: Sequence[str], head: str) -> int:
    plain = [re.sub(r"\\(.)", r"\1", each) for each in heads]
    if head not in plain:
        raise unknown_name("column of the table", head, plain)
    return plain.index(head)
