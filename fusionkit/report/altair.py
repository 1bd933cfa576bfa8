"""Imports Altair and vl-convert, which come with the extra ``report``, or says that they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from fusionkit.errors import UsageError


def optional(name: str) -> ModuleType:
    """A library of the extra; a UsageError says so where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            "figures and the page need packages that are not installed",
            expected="altair and vl-convert-python",
            received=str(error),
            remedy="pip install 'fusionkit[report]'",
        ) from error


def altair() -> Any:
    """Altair: Vega-Lite specifications, checked against their schema."""
    return optional("altair")


def vl_convert() -> Any:
    """vl-convert: the same specifications as SVG and PNG, and the script of Vega itself for the page."""
    return optional("vl_convert")
