"""Successive halving: at each rung the worse half of the settings stops, and the others train on.

    rung k = ⌊E / 2^(K − k)⌋        settings kept there = ⌈n / 2^(k + 1)⌉        k = 0 … K − 1,  K = ⌈log₂ n⌉

Symbols: ``n`` settings that compete, ``E`` epochs of each. A rung is at least epoch 1, and an epoch that is scored.
Four settings of ten epochs cost as much as 1.9 of them: 4 · 2 + 2 · 3 + 1 · 5 epochs instead of 40.

A setting is a rate and a choice of layers. Settings compete where all other options of their runs agree. The score of a
setting at a rung is the mean, over its seeds, of the best validation score so far. Settings that are as good as the
last one kept go on too. A run that goes on is not changed by those that stop: it ends with the score that it would have
without halving.
Source: Jamieson and Talwalkar (2016), one bracket, with a factor of 2.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusionkit.fit.grouped import grouped
from fusionkit.fit.train.result import Curve, RunState
from fusionkit.metrics import ROUNDING, is_better
from fusionkit.specs import RunSpec

SETTING = ("lr", "fusion_layers")  # what competes
AVERAGED = ("data_seed", "init_seed", "draw_ids", "init_from")  # what differs between trials of one setting

Setting = tuple[Any, ...]
Rivals = tuple[Any, ...]  # what competing runs have in common


def setting_of(spec: RunSpec) -> Setting:
    return tuple(getattr(spec, name) for name in SETTING)


def rivals_of(spec: RunSpec) -> Rivals:
    """A key that is equal for two runs whose settings compete."""
    return tuple(value for name, value in spec.to_dict().items() if name not in (*SETTING, *AVERAGED))


def rungs(settings: int, epochs: int, validate_every: int = 1) -> dict[int, int]:
    """For each epoch after which some settings stop, the number of settings that go on."""
    found: dict[int, int] = {}
    count = math.ceil(math.log2(max(settings, 1)))
    for k in range(count):
        epoch = epochs // 2 ** (count - k) // validate_every * validate_every
        if (epoch := max(epoch, validate_every)) < epochs:
            found[epoch] = -(-settings // 2 ** (k + 1))
    return found


def epochs_share(settings: int, epochs: int, validate_every: int = 1) -> float:
    """The share of all epochs of ``settings`` settings that is trained."""
    trained, before, going = 0, 0, settings
    for epoch, kept in rungs(settings, epochs, validate_every).items():
        trained, before, going = trained + going * (epoch - before), epoch, kept
    return (trained + going * (epochs - before)) / (settings * epochs)


@dataclass(frozen=True)
class Progress:
    """The progress of a run; ``failed``: its loss was not finite; ``stopped``: it was stopped at the last epoch of its
    curve.
    """

    setting: Setting
    metric: str
    curve: Curve
    failed: bool = False
    stopped: bool = False

    def score(self, epoch: int) -> float | None:
        """The best validation score up to an epoch; None where no epoch was scored."""
        best: float | None = None
        for each in self.curve:
            value = each["validation_score"]
            if each["epoch"] <= epoch and value is not None:
                best = value if best is None or is_better(self.metric, value, best) else best
        return best


class Halving:
    """Decides which runs of a unit stop.

    Args:
        records: records of runs that ended before; those that compete with the unit's runs count.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self._trials: dict[Rivals, dict[str, Progress]] = {}
        for record in records:
            spec = RunSpec.from_dict(record["spec"])
            trial = Progress(
                setting_of(spec),
                metric=record.get("metric") or "",
                curve=record.get("curve") or [],
                failed=record["status"] == "failed",
                stopped=record["status"] == "stopped",
            )
            self._trials.setdefault(rivals_of(spec), {})[spec.digest] = trial

    def stopped(self, runs: Sequence[RunState], failed: Container[RunState], epoch: int) -> set[RunState]:
        """The runs of a unit that stop after an epoch.

        Args:
            runs: all that were trained in this epoch. failed: those of them whose loss was not finite.
        """
        together = grouped(runs, lambda run: rivals_of(run.spec))
        for rivals, mine in together.items():
            trials = self._trials.setdefault(rivals, {})
            for run in mine:
                trials[run.spec.digest] = Progress(setting_of(run.spec), run.metric, run.curve, failed=run in failed)
        return {run for rivals, mine in together.items() for run in self._losers(mine, self._trials[rivals], epoch)}

    def _losers(self, runs: Sequence[RunState], trials: Mapping[str, Progress], epoch: int) -> list[RunState]:
        by_setting = grouped(trials.values(), lambda trial: trial.setting)
        epochs = min(run.length.epochs for run in runs)
        kept = rungs(len(by_setting), epochs, runs[0].spec.validate_every).get(epoch)
        if kept is None:
            return []
        means = {setting: _mean(each, epoch) for setting, each in by_setting.items()}
        metric = next((trial.metric for trial in trials.values() if trial.metric), "")
        sign = -1 if is_better(metric, 1.0, 0.0) else 1
        order = sorted(by_setting, key=lambda each: math.inf if math.isnan(means[each]) else sign * means[each])
        last = means[order[kept - 1]]
        # Of rates that have learned nothing yet, such as taggers at 0 F1, the first would win by its place.
        going = {*order[:kept], *(each for each in order if math.isclose(means[each], last, rel_tol=ROUNDING))}
        return [run for run in runs if setting_of(run.spec) not in going]


def _mean(trials: Sequence[Progress], epoch: int) -> float:
    """A setting's score; NaN where one of its runs failed or was stopped before."""
    scores = [trial.score(epoch) for trial in trials]
    out = any(trial.failed or (trial.stopped and len(trial.curve) < epoch) for trial in trials)
    return math.nan if out or None in scores else float(np.mean([score for score in scores if score is not None]))
