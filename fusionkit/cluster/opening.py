"""Opening a cluster by its settings: one way to use it, whatever starts its workers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from distributed import Client

from fusionkit.cluster.settings import ClusterSettings


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


def open_cluster(settings: ClusterSettings) -> AbstractContextManager[Cluster]:
    """A cluster as the settings say; leaving the block ends all that was started for it.

    Raises:
        FusionkitError: it cannot be started or reached.
    """
    if settings.kind == "local":
        from fusionkit.cluster.local import open_local

        return open_local(settings)
    if settings.kind == "slurm":
        from fusionkit.cluster.slurm import open_slurm

        return open_slurm(settings)
    from fusionkit.cluster.remote import open_remote

    return open_remote(settings)
