"""Values and names of groups as the notes below a table write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from fusionkit.plural import counted

SHOWN = 4  # names in a note


def value_text(value: Any, missing: str = "none") -> str:
    """A value of a column as a user writes it: numbers without trailing zeros, ``missing`` where there is no value."""
    if pd.isna(value):
        return missing
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def option_text(name: str, value: Any) -> str:
    """A value of an option's column; without ``fusion_layers`` a fusion reads all layers."""
    return value_text(value, missing="all" if name == "fusion_layers" else "none")


def first_names(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = f" and {counted(len(names) - SHOWN, 'other')}" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
