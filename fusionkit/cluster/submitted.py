"""Tasks of a scheduler, from their submission to their end."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from distributed import Client, Future
from distributed.client import ClosedClientError

from fusionkit.errors import FusionkitError

Item = TypeVar("Item")


class SubmittedTasks(Generic[Item]):
    """Tasks under way, each with the item that it was submitted for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tasks: dict[str, tuple[Item, Future[Any]]] = {}
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._tasks)

    def submit(self, item: Item, function: Callable[..., Any], *arguments: Any) -> None:
        """Submit a task, which is done even if an equal task was done before.

        Raises:
            FusionkitError: the scheduler is gone.
        """
        # Dask keeps a count per group of keys, named by the text before the first number: one group for all tasks.
        name = f"task-{uuid.uuid4().int}"
        try:
            future = self._client.submit(function, *arguments, key=name, pure=False)
        except ClosedClientError as error:
            raise gone(self._client) from error
        self._tasks[name] = item, future
        future.add_done_callback(lambda _: self._ended.put(name))  # type: ignore[no-untyped-call]

    def wake(self) -> None:
        """Make :meth:`ended` return at once."""
        self._ended.put("")

    def ended(self, seconds: float) -> list[tuple[Item, Future[Any]]]:
        """The tasks that ended since the last call, after up to ``seconds`` for the first; the caller releases them."""
        names = []
        try:
            names.append(self._ended.get(timeout=seconds))
            while True:
                names.append(self._ended.get_nowait())
        except queue.Empty:
            return [self._tasks.pop(name) for name in names if name in self._tasks]

    def cancel(self) -> None:
        if self._tasks and self._client.status == "running":
            self._client.cancel([future for _, future in self._tasks.values()], force=True)  # type: ignore[no-untyped-call]
        self._tasks.clear()


def gone(client: Client) -> FusionkitError:
    return FusionkitError(
        "the scheduler is gone",
        received=f"the connection is {client.status}",
        remedy="run the same command again: finished work is kept",
    )
