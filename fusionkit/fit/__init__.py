"""Stage two: many cheap heads over a store."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fusionkit.dataset.mixture import Mix, mix_of
from fusionkit.dataset.share import Share
from fusionkit.fit.executor.estimate import forecast
from fusionkit.fit.executor.run import fit
from fusionkit.fit.executor.scheduler import FitProgress
from fusionkit.fit.model.warm_start import open_starts
from fusionkit.fit.sweep.grid import expand
from fusionkit.runs.folder import RunsFolder, is_runs

if TYPE_CHECKING:
    from fusionkit.runs.comparison import compare
    from fusionkit.runs.summary import summarise

__all__ = [
    "FitProgress", "Mix", "RunsFolder", "Share", "compare", "expand", "fit", "forecast", "is_runs", "mix_of",
    "open_starts",
    "summarise",
]  # fmt: skip

# Imported when they are asked for: a worker, which asks for neither, would wait a second longer for its first unit.
LAZY = {"compare": "fusionkit.runs.comparison", "summarise": "fusionkit.runs.summary"}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(LAZY[name]), name)
