"""Encoding and training on many processes and machines, by Dask."""

from fusionkit.cluster.open import open_cluster
from fusionkit.cluster.protocol import Cluster
from fusionkit.cluster.settings import ClusterSettings, read_settings

__all__ = ["Cluster", "ClusterSettings", "open_cluster", "read_settings"]
