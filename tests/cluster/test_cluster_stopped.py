"""SIGTERM while Slurm is asked something: a stop, and no Slurm that does not answer."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

from fusionkit.cli.console import sigterm_raises
from fusionkit.cluster import ClusterSettings, slurm_commands
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
