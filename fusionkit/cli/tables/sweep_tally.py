"""Counts of a running sweep: runs done and failed, best scores so far, speed, time left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusionkit.metrics import is_better
from fusionkit.specs import RunSpec, is_plain
from fusionkit.tasks.joint import told_tasks

# What tells the best run of its task and fusion from its neighbours, where it differs among them.
TOLD = {
    "method": "", "encoder_lr": "encoder lr ",
    "head": "", "fusion_layers": "layers ", "shots": "shots ", "lr": "lr ", "epochs": "epochs ", "batch_size": "batch ",
    "data_seed": "seed ",
}  # fmt: skip
TELLING_SECONDS, TELLING_SHARE = 5.0, 0.005  # of a pace that says something: its first epochs are slow


@dataclass
class TallyRow:
    """One task and fusion; ``best`` is the record of the run with the best validation score."""

    label: str
    fusion: str
    runs: int = 0
    done: int = 0
    failed: int = 0
    best: dict[str, Any] | None = None

    def is_best(self, record: dict[str, Any]) -> bool:
        score = record["validation_score"]
        return self.best is None or is_better(record["metric"], score, self.best["validation_score"])


class Tally:
    """Counts of all runs of a sweep, of which some had ``ended`` before. ``clock`` gives seconds, ever more."""

    def __init__(self, specs: Sequence[RunSpec], ended: Iterable[dict[str, Any]], clock: Callable[[], float]) -> None:
        self._clock, self._began = clock, clock()
        heads = [spec for spec in specs if not spec.is_floor]  # a floor has a head and epochs in name alone
        self._differ = [name for name in TOLD if len({getattr(spec, name) for spec in heads}) > 1]
        self._lines: dict[tuple[str, str], TallyRow] = {}
        for spec in specs:
            self._line(spec.task, spec.label, spec.fusion).runs += 1
        self.runs, self.done, self.failed, self.others, self._ours = len(specs), 0, 0, 0, 0
        self.note = ""  # who is at work
        self.stepped = ""  # how far a run is that trains through the encoder
        self._work: Mapping[str, float] = {}
        self._through, self._of = 0.0, 0.0
        self._paced: tuple[float, float] | None = None  # when the first epoch was done, and how much then
        for record in ended:
            self._count(record)

    def begin(self, work: Mapping[str, float]) -> None:
        """Runs of so much work, by digest, are left, and are begun now."""
        self._began, self._work, self._of = self._clock(), work, sum(work.values())

    def epoch(self, work: float) -> None:
        """One more epoch is done, of so much work. A run that is trained again reports its epochs twice."""
        self._through = min(self._through + work, self._of)
        self._paced = self._paced or (self._clock(), self._through)

    def step(self, work: float, text: str) -> None:
        """So much more work of one run is done."""
        self.stepped = text
        self.epoch(work)

    def run(self, record: dict[str, Any]) -> None:
        self._ours, self.stepped = self._ours + 1, ""
        self._count(record)

    def elsewhere(self, record: dict[str, Any]) -> None:
        """A run that was left has ended in another process."""
        self.others += 1
        work = self._work.get(RunSpec.from_dict(record["spec"]).digest, 0.0)
        self._through = min(self._through + work, self._of)
        self._count(record)

    @property
    def share(self) -> float:
        """The share that is done, of the work that was left at the beginning."""
        return self._through / self._of if self._of else 1.0

    @property
    def per_minute(self) -> float | None:
        """Runs that this sweep has ended a minute; None before the first."""
        seconds = self._clock() - self._began
        return 60 * self._ours / seconds if self._ours and seconds else None

    @property
    def seconds_left(self) -> float | None:
        """The seconds that the remaining work takes at the pace since the first epoch; None before that tells
        anything.
        """
        if self._paced is None:
            return None
        since, first = self._paced  # what went before, the start of workers, does not come again
        done, seconds = self._through - first, self._clock() - since
        if not done or seconds < TELLING_SECONDS or done < TELLING_SHARE * self._of:
            return None
        return seconds * (self._of - self._through) / done

    def lines(self) -> list[TallyRow]:
        """One a task and fusion, in the order of the sweep."""
        return list(self._lines.values())

    def best(self) -> dict[str, dict[str, Any]]:
        """The record of the best run of each task, or of the tasks that learn together."""
        found: dict[str, TallyRow] = {}
        for line in self._lines.values():
            if line.best is not None and (line.label not in found or found[line.label].is_best(line.best)):
                found[line.label] = line
        return {label: line.best for label, line in found.items() if line.best is not None}

    def told(self, record: dict[str, Any]) -> str:
        """The name of a record's run: the options by which it differs from the others, ``shots 16, lr 0.1``."""
        return ", ".join(f"{TOLD[name]}{_plain(record['spec'][name])}" for name in self._differ)

    def _count(self, record: dict[str, Any]) -> None:
        line = self._line(*(record["spec"][name] for name in ("task", "label", "fusion")))
        failed = record["status"] == "failed"
        self.done, line.done = self.done + 1, line.done + 1
        self.failed, line.failed = self.failed + failed, line.failed + failed
        if not failed and is_plain(record["spec"]) and line.is_best(record):
            line.best = record

    def _line(self, task: str, label: str, fusion: str) -> TallyRow:
        told = told_tasks(task, label)
        return self._lines.setdefault((told, fusion), TallyRow(told, fusion))


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "all" if value is None else str(value)
