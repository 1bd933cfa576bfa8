"""Stage two: many cheap heads over a store."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fusionkit.fit.expand import expand
from fusionkit.fit.mixing import Mix, mix_of
from fusionkit.fit.progress import FitProgress
from fusionkit.fit.results import RunsFolder, is_runs
from fusionkit.fit.shares import Share
from fusionkit.fit.starting import open_starts
from fusionkit.fit.sweep import fit, foresee

if TYPE_CHECKING:
    from fusionkit.fit.comparing import compare
    from fusionkit.fit.summary import summarise

__all__ = [
    "FitProgress", "Mix", "RunsFolder", "Share", "compare", "expand", "fit", "foresee", "is_runs", "mix_of",
    "open_starts",
    "summarise",
]  # fmt: skip

# Imported when they are asked for: a worker, which asks for neither, would wait a second longer for its first unit.
LAZY = {"compare": "fusionkit.fit.comparing", "summarise": "fusionkit.fit.summary"}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(LAZY[name]), name)
