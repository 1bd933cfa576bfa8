"""Stage two: many cheap heads over a store."""

from typing import TYPE_CHECKING

from fusionkit.lazy import lazily

if TYPE_CHECKING:
    from fusionkit.dataset.mixture import Mix, mix_of
    from fusionkit.dataset.share import Share
    from fusionkit.dataset.task_stores import TaskChoice, TaskStores
    from fusionkit.fit.executor.estimate import forecast
    from fusionkit.fit.executor.run import fit
    from fusionkit.fit.model.warm_start import open_starts
    from fusionkit.fit.progress import FitProgress
    from fusionkit.fit.sweep.fixed_draws import open_draws
    from fusionkit.fit.sweep.grid import expand
    from fusionkit.runs.comparison.compare import compare
    from fusionkit.runs.folder import RunsFolder
    from fusionkit.runs.summary import RunGroups, summarise

__all__ = [
    "FitProgress", "Mix", "RunGroups", "RunsFolder", "Share", "TaskChoice", "TaskStores", "compare", "expand", "fit",
    "forecast", "mix_of", "open_draws", "open_starts", "summarise",
]  # fmt: skip

# Most of these load torch, and the modules below this package that check what a user wrote do not.
__getattr__ = lazily(
    __name__,
    {
        "fusionkit.dataset.mixture": ("Mix", "mix_of"),
        "fusionkit.dataset.share": ("Share",),
        "fusionkit.dataset.task_stores": ("TaskChoice", "TaskStores"),
        "fusionkit.fit.executor.estimate": ("forecast",),
        "fusionkit.fit.executor.run": ("fit",),
        "fusionkit.fit.model.warm_start": ("open_starts",),
        "fusionkit.fit.progress": ("FitProgress",),
        "fusionkit.fit.sweep.fixed_draws": ("open_draws",),
        "fusionkit.fit.sweep.grid": ("expand",),
        "fusionkit.runs.comparison.compare": ("compare",),
        "fusionkit.runs.folder": ("RunsFolder",),
        "fusionkit.runs.summary": ("RunGroups", "summarise"),
    },
)
