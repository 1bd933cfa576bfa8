"""Stage two: many cheap heads over a store."""

from fusionkit.fit.comparing import compare
from fusionkit.fit.expand import expand
from fusionkit.fit.mixing import Mix, mix_of
from fusionkit.fit.progress import FitProgress
from fusionkit.fit.results import RunsFolder, is_runs
from fusionkit.fit.shares import Share
from fusionkit.fit.starting import open_starts
from fusionkit.fit.summary import summarise
from fusionkit.fit.sweep import fit, foresee

__all__ = [
    "FitProgress", "Mix", "RunsFolder", "Share", "compare", "expand", "fit", "foresee", "is_runs", "mix_of",
    "open_starts",
    "summarise",
]  # fmt: skip
