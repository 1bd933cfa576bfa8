"""The baseline that a user names: ``last``, or ``fusion=last,lr=0.002``."""

from __future__ import annotations

import re

import pandas as pd

from fusionkit.errors import UsageError, unknown_name

NO_VALUE = "none"


def read_baseline(text: str, table: pd.DataFrame, keys: list[str], bare: str, columns: list[str]) -> dict[str, str]:
    """The columns that a baseline fixes, each with its value as :func:`label_of` writes it.

    Args:
        text: a value of the column ``bare`` or of one other key alone, or ``COLUMN=VALUE`` with commas between;
            ``none`` where a column has no value. table: one row a group. keys: the columns it is grouped by.
        columns: all that the results have.

    Raises:
        UsageError: a column or value that does not exist, or a column that the table is not grouped by.
    """
    labels = {name: list(dict.fromkeys(map(label_of, table[name]))) for name in keys}
    # Names of fusions hold commas and equals signs themselves: linear:gamma=no,norm=token.
    holders = [name for name in keys if text in labels[name]]
    if text in labels[bare] or len(holders) == 1:
        return {bare if text in labels[bare] else holders[0]: text}
    parts = re.split(rf",(?=(?:{'|'.join(map(re.escape, columns))})=)", text)
    if not re.match("[a-z_]+=", text):
        parts = [f"{bare}={text}"]
    fixed: dict[str, str] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name not in columns:
            raise unknown_name("column of the results", name, columns)
        if name not in keys:
            raise UsageError(
                f"the baseline fixes {name}, by which the table is not grouped",
                expected="one of " + ", ".join(keys),
                received=text,
                remedy=f"add --by {name}",
            )
        fixed[name] = _known(name, value, labels[name])
    return fixed


def label_of(value: object) -> str:
    """A value of a column as a user writes it: numbers without trailing zeros, ``none`` where there is no value."""
    if pd.isna(value):  # type: ignore[call-overload]
        return NO_VALUE
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _known(name: str, value: str, labels: list[str]) -> str:
    if value in labels:
        return value
    for label in labels:  # 2e-3 is 0.002
        try:
            if float(label) == float(value):
                return label
        except ValueError:
            continue
    raise unknown_name(f"{name} of these results", value, labels)
