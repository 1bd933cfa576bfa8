"""Workers as Slurm jobs."""

from __future__ import annotations

from contextlib import AbstractContextManager

from fusionkit.cluster.opening import Cluster
from fusionkit.cluster.settings import ClusterSettings
from fusionkit.errors import UsageError


def open_slurm(settings: ClusterSettings) -> AbstractContextManager[Cluster]:
    """A scheduler here, and a job a worker."""
    raise UsageError("this release starts no Slurm jobs", remedy="choose --cluster local or a scheduler's address")
