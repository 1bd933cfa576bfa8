"""Opening a cluster by its settings."""

from __future__ import annotations

from contextlib import AbstractContextManager

from fusionkit.cluster.protocol import Cluster
from fusionkit.cluster.settings import ClusterSettings


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
