"""SIGTERM while Slurm is asked something, or the first worker is waited for: a stop, and no error of Slurm."""

from __future__ import annotations

import signal
import subprocess
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from fusionkit.cli.console import sigterm_raises
from fusionkit.cluster import ClusterSettings, encode_workers, slurm_commands
from fusionkit.cluster.slurm import SlurmCluster
from fusionkit.errors import StoppedError

NOBODY: Any = None  # neither is asked for anything


@pytest.fixture(autouse=True)
def _stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while Slurm's own program runs."""
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: signal.raise_signal(signal.SIGTERM))


def test_a_stop_while_jobs_are_listed_is_a_stop() -> None:
    with sigterm_raises(), pytest.raises(StoppedError):
        slurm_commands.active("fusionkit-0")


def test_a_stop_while_a_lost_workers_job_is_replaced_is_a_stop() -> None:
    cluster = SlurmCluster(NOBODY, NOBODY, ClusterSettings(kind="slurm", workers=2), "fusionkit-0", "")
    with sigterm_raises(), pytest.raises(StoppedError):
        cluster._replace({1}, {2})


def test_a_stop_while_the_first_worker_is_waited_for_is_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job may wait in the queue for a day."""
    task = SimpleNamespace(add_done_callback=lambda _: None)
    client = SimpleNamespace(status="running", submit=lambda *_, **__: task, cancel=lambda *_, **__: None)
    queued = SimpleNamespace(client=client, count=SimpleNamespace(up=0), workers=1, heal=lambda: None)
    monkeypatch.setattr(encode_workers, "open_cluster", lambda _: nullcontext(queued))
    waiting = encode_workers.open_encode_workers(ClusterSettings(kind="slurm"), "auto", lambda: True)
    with pytest.raises(StoppedError, match="before a worker had started"), waiting:
        pass
