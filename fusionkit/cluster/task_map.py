"""Map one function over many items with workers that may die: a window of tasks, each gathered and released as it ends.

The scheduler holds only the tasks of the window, so its memory does not grow with the number of items. A task whose
worker dies is done again by another worker, without a message; a task whose function raises is tried again, and set
aside after the last attempt while the others go on. So the function must be idempotent, and must make its result
durable before it returns a small record.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Generic, TypeVar

from distributed import KilledWorker

from fusionkit.cluster.protocol import Cluster
from fusionkit.cluster.submitted import SubmittedTasks, gone
from fusionkit.errors import FusionkitError

Item = TypeVar("Item")
Record = TypeVar("Record")
ATTEMPTS = 3  # how often a function may raise for one item
AHEAD = 3  # tasks per worker in the window: one that runs, one that waits at the worker, one on its way
LEAST = 8
TICK_SECONDS = 0.2
GIVE_UP = 3  # items that fail before any is done: then the items are not at fault


@dataclass(frozen=True)
class FailedItem(Generic[Item]):
    """An item that was given up, with its last error; ``attempts``: how often it was tried."""

    item: Item
    error: Exception
    attempts: int


def each_done(
    cluster: Cluster,
    function: Callable[[Item], Record],
    items: Iterable[Item],
    *,
    on_aside: Callable[[FailedItem[Item]], object],
    tick: Callable[[], None] = lambda: None,
    hopeless: Callable[[Exception, int], bool] = lambda error, attempt: False,
    start_timeout: float = 300.0,
) -> Iterator[tuple[Item, Record]]:
    """Do all items and yield each with its record as it ends, except those that are set aside.

    Args:
        function: workers import it from an installed package, or receive it pickled by value. on_aside:
            called as soon as an item is set aside. tick: called several times a second; what it raises ends the work.
        hopeless: whether every item would meet an error of this attempt, from 1. Such an error is raised at once.
        start_timeout: the most seconds without any worker.

    Raises:
        FusionkitError: there was no worker for too long, or the scheduler is gone. Others: from ``tick``; hopeless
            errors; the last error if :data:`GIVE_UP` items fail before any is done.
    """
    tasks: SubmittedTasks[tuple[Item, int]] = SubmittedTasks(cluster.client)
    first_attempts = ((item, 1) for item in items)
    again: deque[tuple[Item, int]] = deque()  # items whose function raised, with the number of the next attempt
    patience, done, given_up = WorkerGrace(cluster, start_timeout), 0, 0
    try:
        while True:
            window = max(AHEAD * max(cluster.workers, cluster.count.up), LEAST)
            while len(tasks) < window:
                attempted = again.popleft() if again else next(first_attempts, None)
                if attempted is None:
                    break
                tasks.submit(attempted, function, attempted[0])
            if not tasks:
                return
            for (item, attempt), future in tasks.ended(TICK_SECONDS):
                try:
                    record: Record = future.result()
                except CancelledError:  # the scheduler forgot the task; the item was not at fault
                    tasks.submit((item, attempt), function, item)
                except Exception as error:
                    if hopeless(error, attempt):
                        raise
                    if attempt < ATTEMPTS and not isinstance(error, KilledWorker):
                        again.append((item, attempt + 1))
                        continue
                    given_up += 1
                    if not done and given_up >= GIVE_UP:
                        raise
                    on_aside(FailedItem(item, error, attempt))
                else:
                    done += 1
                    yield item, record
                finally:
                    future.release()  # type: ignore[no-untyped-call]
            cluster.heal()
            tick()
            patience.refuse_silence()
    finally:
        tasks.cancel()


class WorkerGrace:
    """The time for which a cluster may be without workers.

    Args:
        seconds: the most without any worker.
    """

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self._cluster, self._seconds, self._seen = cluster, seconds, time.monotonic()

    def refuse_silence(self) -> None:
        """Raise FusionkitError if there was no worker for too long, or the scheduler is gone."""
        cluster = self._cluster
        if cluster.client.status not in ("running", "connecting"):
            raise gone(cluster.client)
        if cluster.count.up:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > self._seconds:
            raise FusionkitError(
                f"no worker for {self._seconds:g} seconds",
                expected=f"{cluster.workers} of them",
                received=cluster.explain(),
                remedy="check the cluster's settings; start_timeout says how long is waited",
            )
