"""Workers write one store on S3, one of them is killed midway: the bytes are those of one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from fusionkit.cluster import ClusterSettings, open_cluster
from fusionkit.cluster.part_map import cluster_parts
from fusionkit.encoder import Encoder


class Killer:
    """Kills a process when the first part is done."""

    def __init__(self, pid: int) -> None:
        self.pid, self.stage, self.killed = pid, "", False

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        self.stage = name

    def advance(self, count: int) -> None:
        if self.stage == "encoding" and not self.killed:
            self.killed = True
            os.kill(self.pid, signal.SIGKILL)

    def say(self, line: str) -> None:
        return


@pytest.mark.soak("kills")
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_on_s3_one_killed_midway_make_the_same_bytes(
    bucket: Any, encoder: Encoder, encoded: Callable[..., Any], assert_same: Callable[..., None], workers: int
) -> None:
    settings = ClusterSettings(workers=workers, threads=1, gpus=0, start_timeout=120)
    with open_cluster(settings) as cluster:
        cluster.client.wait_for_workers(workers, timeout=120)
        victim = next(iter(cluster.client.run(os.getpid).values()))
        killer = Killer(victim)
        runner = cluster_parts(cluster, encoder, settings)
        assert encoded(bucket / "s", run_parts=runner, progress=killer).outcome == "encoded"
        assert killer.killed
        assert_same(bucket.folder / "s")
        cluster.client.wait_for_workers(workers, timeout=120)
        assert victim not in cluster.client.run(os.getpid).values()
