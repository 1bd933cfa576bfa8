"""One way to use a cluster, whatever starts its workers."""

from __future__ import annotations

from typing import Protocol

from distributed import Client


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
