"""Opening a cluster by its settings."""

from __future__ import annotations

from contextlib import AbstractContextManager

from fusionkit.cluster.local import open_local
from fusionkit.cluster.protocol import Cluster
from fusionkit.cluster.remote import open_remote
from fusionkit.cluster.settings import ClusterSettings
from fusionkit.cluster.slurm import open_slurm


def open_cluster(settings: ClusterSettings) -> AbstractContextManager[Cluster]:
    """A cluster as the settings say; leaving the block ends all that was started for it.

    Raises:
        FusionkitError: it cannot be started or reached.
    """
    if settings.kind == "local":
        return open_local(settings)
    return open_slurm(settings) if settings.kind == "slurm" else open_remote(settings)
