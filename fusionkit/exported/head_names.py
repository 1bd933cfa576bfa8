"""Names of heads that are shown together, for headers and as keys of answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.options.entry import options_of
from fusionkit.specs import FROZEN, RunSpec

UNTOLD = ("method", "fusion", "label", "task", "store", "mix", "evaluate_on", "init_from", "draw_ids")
SEEDS = ("data_seed", "init_seed")
OPTIONS = (*(name for name in options_of(RunSpec) if name not in (*UNTOLD, *SEEDS)), *SEEDS)


def head_names(runs: Sequence[TrainedRun]) -> list[str]:
    """A unique name for each head: the column that it learned, or the task's name where each task has its own data. If
    several heads share it, method and fusion follow, then each option that distinguishes some of them:
    ``intent/attention``, ``intent/attention/lr=0.0005``, ``intent/full/last``. If names are still equal, the beginning
    of the run's digest follows; for copies of one run the folder's name, or its path.
    """
    names = [run.name if run.apart else run.spec.label for run in runs]
    for told_apart in (_by_options, _by_place):
        for shared in [name for name, count in Counter(names).items() if count > 1]:
            places = [at for at, name in enumerate(names) if name == shared]
            for at, own in zip(places, told_apart([runs[at] for at in places]), strict=True):
                names[at] = f"{shared}/{own}"
    return names


def _by_options(runs: Sequence[TrainedRun]) -> list[str]:
    """Method and fusion of each run, then each option that distinguishes runs that are alike so far."""
    columns = [[_method(run) for run in runs]]
    for texts in _facts(runs):
        if len({*zip(*columns, texts, strict=True)}) > len({*zip(*columns, strict=True)}):
            columns.append(texts)
    return ["/".join(filter(None, each)) for each in zip(*columns, strict=True)]


def _by_place(runs: Sequence[TrainedRun]) -> list[str]:
    """The beginning of each run's digest; where copies of a run share it, their folders' names, or paths."""
    digests, folders = [run.digest[:8] for run in runs], [run.folder.name for run in runs]
    separate = (texts for texts in (digests, folders) if len(set(texts)) == len(runs))
    return next(separate, [str(run.folder) for run in runs])


def _method(run: TrainedRun) -> str:
    return run.spec.fusion if run.spec.method == FROZEN else f"{run.spec.method}/{run.spec.fusion}"


def _facts(runs: Sequence[TrainedRun]) -> list[list[str]]:
    facts = [["with others" if run.name else "" for run in runs], [run.data for run in runs]]
    return facts + [[_text(name, getattr(run.spec, name)) for run in runs] for name in OPTIONS]


def _text(name: str, value: Any) -> str:
    return "" if value is None else f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
