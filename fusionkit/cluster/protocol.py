"""One way to use a cluster, whatever starts its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from distributed import Client, Future
from distributed.client import ClosedClientError

from fusionkit.errors import FusionkitError


class Cluster(Protocol):
    """Workers, and who brings lost ones back.

    Attributes:
        client: the connection to the scheduler.
    """

    client: Client

    @property
    def workers(self) -> int:
        """How many there should be."""
        ...

    @property
    def lost(self) -> int:
        """How many have been lost, whether or not others came for them."""
        ...

    @property
    def up(self) -> int:
        """How many workers were there at the last look."""
        ...

    def heal(self) -> None:
        """Look how many there are, and bring lost ones back; called now and then while work is waited for."""

    def explain(self) -> str | None:
        """Why workers do not come, where that is known: the end of a job's log."""
        ...

    def abandon(self) -> None:
        """End all workers at once, whatever they are at: the work is given up."""


def submit(client: Client, function: Callable[..., Any], *arguments: Any, key: str) -> Future[Any]:
    """One task, which is done whether or not another like it was.

    Raises:
        FusionkitError: the scheduler is gone.
    """
    try:
        return client.submit(function, *arguments, key=key, pure=False)
    except ClosedClientError as error:
        raise gone(client) from error


def gone(client: Client) -> FusionkitError:
    """What to tell of a scheduler that is gone."""
    return FusionkitError(
        "the scheduler is gone",
        received=f"the connection is {client.status}",
        remedy="run the same command again: finished work is kept",
    )
