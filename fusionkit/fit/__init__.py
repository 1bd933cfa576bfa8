"""Stage two: many cheap heads over a store."""

from fusionkit.fit.results import RunsFolder, is_runs
from fusionkit.fit.summary import summarise
from fusionkit.fit.sweep import FitProgress, expand, fit

__all__ = ["FitProgress", "RunsFolder", "expand", "fit", "is_runs", "summarise"]
