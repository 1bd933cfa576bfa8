"""A cluster for ``encode``: the device of its workers, and the map of encoding over parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from fusionkit.cluster.local import devices
from fusionkit.cluster.open import open_cluster
from fusionkit.cluster.part_map import cluster_parts
from fusionkit.cluster.protocol import Cluster
from fusionkit.cluster.settings import ClusterSettings
from fusionkit.cluster.task_map import each_done
from fusionkit.encode.pipeline import PartsRunner
from fusionkit.encoder import Encoder
from fusionkit.errors import StoppedError


@dataclass(frozen=True)
class EncodeWorkers:
    """Workers that encode.

    Attributes:
        device: the device of all workers, ``cpu`` or ``cuda``.
    """

    cluster: Cluster
    settings: ClusterSettings
    device: str

    def parts(self, encoder: Encoder, stop: Callable[[], bool], note: Callable[[str], None]) -> PartsRunner:
        """The map over parts; arguments as :func:`fusionkit.cluster.part_map.cluster_parts`."""
        assert encoder.loading is not None, "an encoder that no other process can load"
        theirs = replace(encoder, loading={**encoder.loading, "device": self.device})
        return cluster_parts(self.cluster, theirs, self.settings, stop=stop, note=note)


@contextmanager
def open_encode_workers(
    settings: ClusterSettings, device: str, stop: Callable[[], bool] = lambda: False
) -> Iterator[EncodeWorkers]:
    """Open a cluster whose workers encode on ``auto``, ``cpu`` or ``cuda``; ``auto`` is the GPU if workers have one.

    Args:
        stop: called several times a second while the first worker is waited for; True ends the wait.

    Raises:
        FusionkitError: as :func:`fusionkit.cluster.open_cluster`. StoppedError: ``stop`` returned True.
    """
    with open_cluster(settings) as cluster:
        yield EncodeWorkers(cluster, settings, _kind(cluster, settings, device, stop))


def _kind(cluster: Cluster, settings: ClusterSettings, device: str, stop: Callable[[], bool]) -> str:
    def tick() -> None:
        if stop():
            raise StoppedError("stopped before a worker had started", remedy="run the same command again")

    if device != "auto":
        return device
    if settings.gpus is not None:
        return "cuda" if settings.gpus else "cpu"
    if settings.kind == "local":
        return "cuda" if devices() else "cpu"
    asked = each_done(cluster, _has_gpu, [0], on_aside=lambda _: None, tick=tick, start_timeout=settings.start_timeout)
    for _, found in asked:
        return "cuda" if found else "cpu"
    return "cpu"


def _has_gpu(_: int) -> bool:
    return torch.cuda.is_available()
