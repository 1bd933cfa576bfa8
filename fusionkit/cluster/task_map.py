"""One function over many items by workers that may die: a window of tasks, each gathered and released as it ends.

The scheduler never knows of more than the window, so its memory does not grow with the items. A task whose worker dies
is done again by another, without a word; one whose function raises is tried again, and set aside at the last attempt
while the others go on. So the function must be idempotent, and what it makes durable before it returns a small record.
"""

from __future__ import annotations

import queue
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from distributed import Future, KilledWorker

from fusionkit.cluster.protocol import Cluster, gone, submit
from fusionkit.errors import FusionkitError

Item = TypeVar("Item")
Record = TypeVar("Record")
AHEAD = 3  # tasks a worker that the scheduler knows of: one at work, one that waits there, one on its way
LEAST = 8
TICK_SECONDS = 0.2
GIVE_UP = 3  # items set aside before one is done: what fails is not the items


@dataclass(frozen=True)
class FailedItem(Generic[Item]):
    """An item that was given up, with the last error; ``attempts``: how often it was tried."""

    item: Item
    error: Exception
    attempts: int


def map_tasks(
    cluster: Cluster,
    function: Callable[[Item], Record],
    items: Iterable[Item],
    *,
    key: Callable[[Item], str],
    on_done: Callable[[Item, Record], None],
    attempts: int = 3,
    **how: Any,
) -> list[FailedItem[Item]]:
    """Do all items; those set aside come back with their errors.

    Args:
        on_done: called here, once an item, in the order in which they end. others: as :func:`each_done`.
    """
    aside: list[FailedItem[Item]] = []
    for item, record in each_done(
        cluster, function, items, key=key, attempts=attempts, **{"on_aside": aside.append, **how}
    ):
        on_done(item, record)
    return aside


def each_done(
    cluster: Cluster,
    function: Callable[[Item], Record],
    items: Iterable[Item],
    *,
    key: Callable[[Item], str],
    on_aside: Callable[[FailedItem[Item]], None],
    attempts: int = 3,
    tick: Callable[[], None] = lambda: None,
    hopeless: Callable[[Exception], bool] = lambda _: False,
    start_timeout: float = 300.0,
) -> Iterator[tuple[Item, Record]]:
    """Do all items but those that are set aside, each with its record as it ends.

    Args:
        function: of an installed package, or pickled by value. key: a short name of an item, like ``train-00003``.
        on_aside: called as soon as an item is set aside. attempts: how often a function may raise.
        tick: called several times a second; what it raises ends the work.
        hopeless: errors that would meet every item: raised where others are set aside.
        start_timeout: seconds without any worker.

    Raises:
        FusionkitError: no worker came in time, or the scheduler is gone. Others: from ``tick``, or hopeless.
    """
    work = _Work(cluster, function, key)
    patience = WorkerGrace(cluster, start_timeout)
    left, done, given_up = iter(items), 0, 0
    try:
        while True:
            work.fill(left)
            if not work.flying:
                return
            for task in work.ended():
                try:
                    record = task.future.result()
                except CancelledError:  # the scheduler forgot it; it was not at fault
                    work.submit(task.item, task.attempt)
                except Exception as error:
                    if task.attempt < attempts and not isinstance(error, KilledWorker):
                        work.again.append((task.item, task.attempt + 1))
                        continue
                    given_up += 1
                    if hopeless(error) or (not done and given_up >= GIVE_UP):
                        raise
                    on_aside(FailedItem(task.item, error, task.attempt))
                else:
                    done += 1
                    yield task.item, record
                finally:
                    task.future.release()  # type: ignore[no-untyped-call]
            cluster.heal()
            tick()
            patience.refuse_silence()
    finally:
        work.cancel()


class WorkerGrace:
    """How long a cluster may be without workers.

    Args:
        seconds: without any of them.
    """

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self._cluster, self._seconds, self._seen = cluster, seconds, time.monotonic()

    def refuse_silence(self) -> None:
        """Raise where nobody works, and nobody has for too long."""
        cluster = self._cluster
        if cluster.client.status not in ("running", "connecting"):
            raise gone(cluster.client)
        if cluster.up:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > self._seconds:
            raise FusionkitError(
                f"no worker for {self._seconds:g} seconds",
                expected=f"{cluster.workers} of them",
                received=cluster.explain(),
                remedy="check the cluster's settings; start_timeout says how long is waited",
            )


@dataclass(frozen=True, eq=False)
class _Task(Generic[Item]):
    item: Item
    attempt: int
    future: Future[Any]


class _Work(Generic[Item, Record]):
    """The tasks that the scheduler knows of."""

    def __init__(self, cluster: Cluster, function: Callable[[Item], Record], key: Callable[[Item], str]) -> None:
        self._cluster, self._function, self._key = cluster, function, key
        self.flying: dict[str, _Task[Item]] = {}
        self.again: deque[tuple[Item, int]] = deque()
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._call = uuid.uuid4().hex[:8]  # two calls over the same items are not the same tasks

    def fill(self, left: Iterable[Item]) -> None:
        """Submit as many as the window has room for; failed ones first."""
        room = max(AHEAD * max(self._cluster.workers, self._cluster.up), LEAST) - len(self.flying)
        while room > 0 and self.again:
            self.submit(*self.again.popleft())
            room -= 1
        if room > 0:
            for item in left:
                self.submit(item, 1)
                if (room := room - 1) <= 0:
                    break

    def submit(self, item: Item, attempt: int) -> None:
        """One more task."""
        # What stands before the first number is the group that Dask keeps count of: one for all.
        name = f"item-{self._key(item)}-{attempt}-{self._call}-{uuid.uuid4().hex[:8]}"
        future = submit(self._cluster.client, self._function, item, key=name)
        self.flying[name] = _Task(item, attempt, future)
        future.add_done_callback(lambda _: self._ended.put(name))  # type: ignore[no-untyped-call]

    def ended(self) -> list[_Task[Item]]:
        """Those that have ended since; waits a moment for the first."""
        keys = []
        try:
            keys.append(self._ended.get(timeout=TICK_SECONDS))
            while True:
                keys.append(self._ended.get_nowait())
        except queue.Empty:
            return [self.flying.pop(key) for key in keys if key in self.flying]

    def cancel(self) -> None:
        """Forget what is under way."""
        if self.flying and self._cluster.client.status == "running":
            self._cluster.client.cancel(  # type: ignore[no-untyped-call]
                [task.future for task in self.flying.values()], force=True
            )
        self.flying.clear()
