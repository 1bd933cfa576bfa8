"""The order of a sweep's work: give units to a free executor, wait for runs of other processes, retry lost runs.

A unit whose process dies or runs out of memory is tried again in two halves, and so on, until the failing run is alone
and the others are done. With ``--halving``, runs that compete stay together as long as possible. A run that is lost
alone, and was lost before, is recorded as failed. Its losses are forgotten if it has saved a later state since it was
given out: it continues from there, so a run may take longer than a job of a cluster.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from itertools import chain

from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.unit_job import Event, failed_record, guard_of
from fusionkit.fit.executor.units import Unit, plan_units, split_in_two
from fusionkit.fit.executor.worker_pool import Executor
from fusionkit.fit.progress import FitProgress
from fusionkit.fit.train.halving import rivals_of
from fusionkit.plural import counted
from fusionkit.runs.claims import Claims
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

LOOK_SECONDS = 0.5  # between two looks at what others do
TABLE_SECONDS = 30.0  # at least, between two tables that are written before the end
TABLE_SHARE = 0.01  # at most this share of the time is spent writing them


class Schedule:
    """The runs that are left of a sweep, and who does them.

    Args:
        units: the runs without a record. widest: the most runs a unit may have. claims: this process's own.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        widest: int,
        context: SweepContext,
        runs: RunsFolder,
        claims: Claims,
        progress: FitProgress,
    ) -> None:
        self._widest, self._context, self._runs = widest, context, runs
        self._claims, self._progress = claims, progress
        self._left = {spec.digest: spec for spec in chain.from_iterable(units)}
        self._pending = deque(units)
        self._again: deque[Unit] = deque()  # lost units
        self._running: set[str] = set()  # runs that the executor has
        self._others: dict[str, str] = {}  # runs that other processes do, and their names
        self._known: set[str] = set()  # processes that the user has been told of
        self._waited: set[str] = set()
        self._noted: set[str] = set()
        self._begun: set[str] = set()  # runs through the encoder that have reported
        self._losses: Counter[str] = Counter()  # of each run, without a later state in between
        self._saved: dict[str, int] = {}  # when each run that was given out had last saved its state
        self._looked = self._written = time.monotonic()
        self._writing = 0.0
        self._ended = False

    def work(self, executor: Executor) -> None:
        """Work until each run has a record, whichever process wrote it."""
        while self._left:
            while executor.free and (specs := self._next()):
                self._running |= {spec.digest for spec in specs}
                self._saved |= {spec.digest: self._saved_at(spec) for spec in specs if spec.is_alone}
                executor.give(specs)
            if self._running or self._others:
                self._say_waiting()
                executor.wait(LOOK_SECONDS)
            self._look()
            self._tabulate()

    def on_event(self, event: Event) -> None:
        """Handle an event that the executor reports."""
        for _ in range(event.count):
            self._progress.epoch(event.work / event.count)
        if event.kind == "resumed" and event.text not in self._begun:  # what was done since was done by this command
            self._begun.add(event.text)
            self._progress.resumed(event.work)
        if event.kind == "step":
            self._progress.step(event.work, event.text)
        if event.kind == "note" and event.text not in self._noted:  # several units send the same note
            self._noted.add(event.text)
            self._progress.say(event.text)
        ours = [digest for digest in event.runs if digest in self._running]  # other runs of a lost unit had ended
        self._running -= set(ours)
        if event.kind in ("lost", "unstarted") and ours:
            self._retry([self._left[digest] for digest in ours], event.text, blamed=event.kind == "lost")
        for digest in ours:
            if event.kind in ("run", "there"):
                self._end(self._left[digest], ours=event.kind == "run")
            elif event.kind == "others":
                self._leave(self._left[digest], event.text)
        self._tabulate()

    def _next(self) -> Sequence[RunSpec]:
        """The next unit, without the runs that other processes do; empty if there is none."""
        while self._again:
            if specs := self._free(self._again.popleft()):
                return specs
        while self._pending:
            unit = self._pending.popleft()
            if len(specs := self._free(unit)) == len(unit):
                return specs
            if specs:  # filled up with similar runs, instead of trained as a small unit
                rest = chain.from_iterable(self._pending)
                self._pending = deque(plan_units([*specs, *rest], self._widest, self._context.halving))
        return ()

    def _free(self, specs: Sequence[RunSpec], ours: bool = False) -> list[RunSpec]:
        """The runs that no process has done or is doing. ``ours``: runs that are done were done for this process."""
        found = []
        for spec in specs:
            if self._runs.has(spec.digest):
                self._end(spec, ours)
            elif (holder := self._holder(spec)) is not None:
                self._leave(spec, holder)
            else:
                found.append(spec)
        return found

    def _holder(self, spec: RunSpec) -> str | None:
        """The process that has claimed a run, or with halving the runs that it competes with."""
        holder = self._claims.holder(spec.digest)
        if holder is None and self._context.halving:
            holder = self._claims.holder(guard_of(rivals_of(spec)))
        return holder

    def _leave(self, spec: RunSpec, holder: str) -> None:
        if holder not in self._known:
            self._known.add(holder)
            self._progress.say(f"{holder} does runs of this sweep too: those are not done here")
        self._others[spec.digest] = holder

    def _look(self) -> None:
        """Check which runs other processes have done, and which they have left undone."""
        if not self._others or time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        theirs, self._others = self._others, {}
        free = self._free([self._left[digest] for digest in theirs])
        for holder, count in Counter(theirs[spec.digest] for spec in free).items():
            self._progress.say(f"{holder} has left {counted(count, 'run')} undone: done here")
        self._pending.extend(plan_units(free, self._widest, self._context.halving))

    def _say_waiting(self) -> None:
        waiting = Counter(self._others.values())
        if not self._running and set(waiting) != self._waited:
            self._waited = set(waiting)
            told = ", ".join(f"{counted(count, 'run')} of {holder}" for holder, count in waiting.items())
            self._progress.say(f"waiting for {told}")

    def _retry(self, specs: list[RunSpec], reason: str, blamed: bool) -> None:
        if not blamed:
            self._again.appendleft(tuple(specs))
            return
        # The process may have died after it wrote a run but before it said so, or before it said who else does a run.
        if not (specs := self._free(specs, ours=True)):
            return
        for spec in specs:
            self._losses[spec.digest] = 0 if self._has_advanced(spec) else self._losses[spec.digest] + 1
        if len(specs) == 1 and self._losses[specs[0].digest] > 1:
            self._fail(specs[0], reason)
            return
        first, second = split_in_two(specs, self._context.halving)
        self._again.extendleft(part for part in (second, first) if part)
        how = "in two halves" if len(specs) > 1 else "once more"
        self._progress.say(f"{counted(len(specs), 'run')} lost, tried again {how}: {reason}")

    def _has_advanced(self, spec: RunSpec) -> bool:
        """Whether a run has saved its state since it was given out: each saved state has a later step."""
        return spec.is_alone and self._saved_at(spec) != self._saved[spec.digest]

    def _saved_at(self, spec: RunSpec) -> int:
        """When the state of a run was saved, in nanoseconds; 0 without a state."""
        try:
            return self._runs.state_path(spec).stat().st_mtime_ns
        except OSError:  # most often there is none
            return 0

    def _fail(self, spec: RunSpec, reason: str) -> None:
        if not self._claims.take(spec.digest):
            self._leave(spec, self._claims.holder(spec.digest) or "another process")
            return
        ours = not self._runs.has(spec.digest)
        if ours:
            self._runs.write(spec, failed_record(self._context, spec, reason), {})
        self._claims.release(spec.digest)
        self._end(spec, ours)

    def _end(self, spec: RunSpec, ours: bool) -> None:
        if (record := self._runs.record(spec)) is None:  # it failed, and another process tries it again
            self._pending.append((spec,))
            return
        del self._left[spec.digest]
        self._ended = True
        (self._progress.run if ours else self._progress.elsewhere)(record)

    def _tabulate(self) -> None:
        """Write the table before the end, for users who look at it meanwhile."""
        now = time.monotonic()
        if now - self._written > max(TABLE_SECONDS, self._writing / TABLE_SHARE) and self._ended:
            self._runs.write_table()
            self._written = time.monotonic()
            self._writing = self._written - now
