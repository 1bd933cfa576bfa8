"""Counts of a running sweep: runs done and failed, best scores so far, speed, time left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusionkit.metrics import is_better
from fusionkit.specs import RunSpec, is_plain
from fusionkit.tasks.joint import shown_tasks

# The options that name the best run of a task and fusion, each shown if it differs in the sweep; with its label.
TOLD = {
    "method": "", "encoder_lr": "encoder lr ",
    "head": "", "fusion_layers": "layers ", "shots": "shots ", "lr": "lr ", "epochs": "epochs ", "batch_size": "batch ",
    "data_seed": "seed ",
}  # fmt: skip
TELLING_SECONDS, TELLING_SHARE = 5.0, 0.005  # before these the pace is not reliable, because the first epochs are slow


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
    """Counts of all runs of a sweep; ``ended`` has records of runs that ended before. ``clock``: monotonic seconds."""

    def __init__(self, specs: Sequence[RunSpec], ended: Iterable[dict[str, Any]], clock: Callable[[], float]) -> None:
        self._clock, self._began = clock, clock()
        heads = [spec for spec in specs if not spec.is_floor]  # a floor's head and epochs have no meaning
        self._differ = [name for name in TOLD if len({getattr(spec, name) for spec in heads}) > 1]
        self._lines: dict[tuple[str, str], TallyRow] = {}
        for spec in specs:
            self._line(spec.task, spec.label, spec.fusion).runs += 1
        self.runs, self.done, self.failed, self.others, self._ours = len(specs), 0, 0, 0, 0
        self.note = ""  # which workers are at work
        self.stepped = ""  # the progress of a run that trains through the encoder
        self._work: Mapping[str, float] = {}
        self._through, self._of = 0.0, 0.0
        self._paced: tuple[float, float] | None = None  # when the first epoch was done, and the work done by then
        for record in ended:
            self._count(record)

    def begin(self, work: Mapping[str, float]) -> None:
        """The remaining runs begin now; ``work`` is the work of each, by digest."""
        self._began, self._work, self._of = self._clock(), work, sum(work.values())

    def epoch(self, work: float) -> None:
        """One more epoch is done, of this much work. A run that is trained again reports its epochs twice."""
        self._through = min(self._through + work, self._of)
        self._paced = self._paced or (self._clock(), self._through)

    def step(self, work: float, text: str) -> None:
        """This much more work of one run is done; ``text`` is its progress."""
        self.stepped = text
        self.epoch(work)

    def resumed(self, work: float) -> None:
        """This much of the work was done before this command began, so it says nothing about the pace."""
        self._of -= work

    def run(self, record: dict[str, Any]) -> None:
        self._ours, self.stepped = self._ours + 1, ""
        self._count(record)

    def elsewhere(self, record: dict[str, Any]) -> None:
        """One of the remaining runs has ended in another process."""
        self.others += 1
        work = self._work.get(RunSpec.from_dict(record["spec"]).digest, 0.0)
        self._through = min(self._through + work, self._of)
        self._count(record)

    @property
    def share(self) -> float:
        """The share of the work, of what was left at the beginning, that is done."""
        return self._through / self._of if self._of else 1.0

    @property
    def per_minute(self) -> float | None:
        """Runs that this command has finished per minute; None before the first."""
        seconds = self._clock() - self._began
        return 60 * self._ours / seconds if self._ours and seconds else None

    @property
    def seconds_left(self) -> float | None:
        """The seconds that the remaining work takes at the pace since the first epoch; None until that is reliable."""
        if self._paced is None:
            return None
        since, first = self._paced  # the time before, the start of workers, is not repeated
        done, seconds = self._through - first, self._clock() - since
        if not done or seconds < TELLING_SECONDS or done < TELLING_SHARE * self._of:
            return None
        return seconds * (self._of - self._through) / done

    def lines(self) -> list[TallyRow]:
        """One row per task and fusion, in the order of the sweep."""
        return list(self._lines.values())

    def best(self) -> dict[str, dict[str, Any]]:
        """The record of the best run of each task, or of the tasks that are learned together."""
        found: dict[str, TallyRow] = {}
        for line in self._lines.values():
            if line.best is not None and (line.label not in found or found[line.label].is_best(line.best)):
                found[line.label] = line
        return {label: line.best for label, line in found.items() if line.best is not None}

    def told(self, record: dict[str, Any]) -> str:
        """The name of a record's run, from the options that differ in the sweep: ``shots 16, lr 0.1``."""
        return ", ".join(f"{TOLD[name]}{_plain(record['spec'][name])}" for name in self._differ)

    def _count(self, record: dict[str, Any]) -> None:
        line = self._line(*(record["spec"][name] for name in ("task", "label", "fusion")))
        failed = record["status"] == "failed"
        self.done, line.done = self.done + 1, line.done + 1
        self.failed, line.failed = self.failed + failed, line.failed + failed
        if not failed and is_plain(record["spec"]) and line.is_best(record):
            line.best = record

    def _line(self, task: str, label: str, fusion: str) -> TallyRow:
        told = shown_tasks(task, label)
        return self._lines.setdefault((told, fusion), TallyRow(told, fusion))


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "all" if value is None else str(value)
