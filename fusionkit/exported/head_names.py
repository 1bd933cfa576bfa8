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
    of the run's digest follows.
    """
    names = [run.name if run.apart else run.spec.label for run in runs]
    for label in [label for label, count in Counter(names).items() if count > 1]:
        places = [at for at, name in enumerate(names) if name == label]
        for at, name in zip(places, _told_apart([runs[at] for at in places]), strict=True):
            names[at] = f"{label}/{name}"
    twice = {name for name, count in Counter(names).items() if count > 1}
    return [f"{name}/{run.digest[:8]}" if name in twice else name for name, run in zip(names, runs, strict=True)]


def _told_apart(runs: Sequence[TrainedRun]) -> list[str]:
    """Method and fusion of each run, then each option that distinguishes runs that are alike so far."""
    columns = [[_method(run) for run in runs]]
    for texts in _facts(runs):
        if len({*zip(*columns, texts, strict=True)}) > len({*zip(*columns, strict=True)}):
            columns.append(texts)
    return ["/".join(filter(None, each)) for each in zip(*columns, strict=True)]


def _method(run: TrainedRun) -> str:
    return run.spec.fusion if run.spec.method == FROZEN else f"{run.spec.method}/{run.spec.fusion}"


def _facts(runs: Sequence[TrainedRun]) -> list[list[str]]:
    facts = [["with others" if run.name else "" for run in runs], [run.data for run in runs]]
    return facts + [[_text(name, getattr(run.spec, name)) for run in runs] for name in OPTIONS]


def _text(name: str, value: Any) -> str:
    return "" if value is None else f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
