"""``fit``'s units on a worker: the same stores opened by their addresses, the same work, words on what became of it.

Epochs, notes and ended runs are told of while the unit goes on, as events of the scheduler; what the task returns tells
of all but epochs once more, so that an event that is lost loses nothing. Of lost runs and of those that others do it
alone tells: a loss that is told twice would count as two. A unit whose worker died leaves a mark behind: the worker
that is given it next does not die of it too, but says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from distributed import get_worker

from fusionkit.fit.executor.context import ContextOpener
from fusionkit.fit.executor.unit_job import Event, do_unit
from fusionkit.fit.executor.worker import EventSender
from fusionkit.memory import keep_freed_memory
from fusionkit.runs.claims import Claims, myself
from fusionkit.runs.folder import CLAIMS, UNIT, RunsFolder
from fusionkit.specs import RunSpec

ONCE = ("lost", "others")  # words after which a run is given to somebody again


@dataclass(frozen=True)
class FitJob:
    """What a worker is told once for all units.

    Attributes:
        name: no other job's. opening: of the materials, as plain values. runs: the whole path of the folder.
    """

    name: str
    opening: Mapping[str, Any]
    runs: str
    threads: int


def do_unit_here(job: FitJob, unit: str, specs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One unit in this process.

    Args:
        unit: a name that no other unit has, in whatever sweep.

    Returns:
        words, but for those on epochs.

    Raises:
        FusionkitError: what stops every other run too.
    """
    mark = Path(job.runs) / CLAIMS / (name := f"{UNIT}{unit}")
    given = [RunSpec.from_dict(dict(values)) for values in specs]
    if mark.exists():
        mark.unlink(missing_ok=True)
        text = "the worker that trained it was lost"
        return [Event("lost", tuple(spec.digest for spec in given), text=text).to_dict()]
    # Locked, for another sweep on this folder clears away what nobody holds.
    marking = Claims(Path(job.runs), myself())
    words: list[dict[str, Any]] = []
    speaker = EventSender(_Events(job.name))

    def hear(word: Event) -> None:
        if word.kind not in ONCE:
            speaker.hear(word)
        if word.kind != "epochs":
            words.append(word.to_dict())

    try:
        marking.take(name)
        session = _fit_session(job)
        do_unit(given, session.materials, session.runs, session.claims, hear)
        speaker.flush()
    finally:
        marking.release(name)
        mark.unlink(missing_ok=True)  # where a file system knows no locks
    return words


class _Events:
    """Sends words as events of a job."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def send(self, value: Any) -> None:
        get_worker().log_event(self._topic, {"word": value})  # Dask adds keys of its own


class _FitSession:
    """A job in this process: the stores open, the task data loaded once."""

    def __init__(self, job: FitJob) -> None:
        torch.set_num_threads(job.threads)
        keep_freed_memory()
        self.job = job
        self.materials = ContextOpener.from_dict(job.opening).open()
        self.runs = RunsFolder(Path(job.runs))
        self.claims = Claims(self.runs.path, myself())


_sessions: list[_FitSession] = []


def _fit_session(job: FitJob) -> _FitSession:
    if not _sessions or _sessions[0].job.name != job.name:
        _sessions.clear()
        _sessions.append(_FitSession(job))
    return _sessions[0]
