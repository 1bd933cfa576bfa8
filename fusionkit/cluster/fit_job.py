"""The units of ``fit`` on a worker of a cluster: the same work as in ``fit/executor/worker.py``, reported through Dask.

Progress, notes and ended runs are reported while the unit goes on, as events of the scheduler. The task returns all
events but those on progress once more, so that nothing is missing if an event is lost. Lost runs, and runs that other
processes do, are only in the return value: a loss that is reported twice would count as two. A worker marks the unit
that it trains. A worker that gets a marked unit reports its runs as lost and does not train it, so that no unit kills
one worker after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distributed import get_worker

from fusionkit.fit.executor.unit_job import Event
from fusionkit.fit.executor.worker import EventSender, UnitRunner
from fusionkit.io.locks import this_process
from fusionkit.runs.claims import Claims
from fusionkit.runs.folder import CLAIMS, UNIT
from fusionkit.specs import RunSpec

PROGRESS = ("epochs", "step", "resumed")  # sent, not returned: it would count twice
ONCE = ("lost", "others")  # returned, not sent: after these events a run is given out again


@dataclass(frozen=True)
class FitJob:
    """What a worker needs for all units of a sweep, sent with each unit, and how it reports.

    Attributes:
        name: a unique name, under which events are reported. opening: the sweep's context, as plain values. runs: the
            absolute path of the folder.
    """

    name: str
    opening: Mapping[str, Any]
    runs: str
    threads: int

    def send(self, value: Any) -> None:
        """Report a value as an event of the job; called in a worker."""
        get_worker().log_event(self.name, {"event": value})  # Dask adds keys of its own


def do_unit_here(job: FitJob, unit: str, specs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One unit in this process.

    Args:
        unit: a name that no other unit of any sweep has.

    Returns:
        the events, except those on progress.

    Raises:
        FusionkitError: an error that stops every other run too.
    """
    name = f"{UNIT}{unit}"
    mark = Path(job.runs) / CLAIMS / name
    if mark.exists():
        mark.unlink(missing_ok=True)
        digests = tuple(RunSpec.from_dict(dict(values)).digest for values in specs)
        return [asdict(Event("lost", digests, text="the worker that trained it was lost"))]
    # The mark is locked, as another sweep on this folder removes files that nobody has locked.
    marking = Claims(Path(job.runs), this_process())
    events: list[dict[str, Any]] = []
    sender = EventSender(job.send)

    def on_event(event: Event) -> None:
        if event.kind not in ONCE:
            sender.on_event(event)
        if event.kind not in PROGRESS:
            events.append(asdict(event))

    try:
        marking.take(name)
        _runner(job).run(specs, on_event)
        sender.flush()
    finally:
        marking.release(name)
        mark.unlink(missing_ok=True)  # where a file system knows no locks
    return events


_runners: dict[str, UnitRunner] = {}  # by the job's name; only the latest job's is kept


def _runner(job: FitJob) -> UnitRunner:
    if job.name not in _runners:
        _runners.clear()
        _runners[job.name] = UnitRunner(job.opening, job.runs, job.threads, this_process())
    return _runners[job.name]
