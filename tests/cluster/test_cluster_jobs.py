"""The jobs of a cluster's workers, with the test in the place of Slurm."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusionkit.cluster import ClusterSettings, protocol, slurm, slurm_commands
from fusionkit.cluster.slurm import SlurmCluster
from fusionkit.cluster.slurm_commands import JobState
from fusionkit.errors import FusionkitError

ENDED = "the workers' jobs end before they are workers"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """Jobs 1 and 2 are submitted for two workers, and no worker is there; Slurm is asked at every look."""
    monkeypatch.setattr(protocol, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(slurm, "FIRST_LOOK", 0.0)
    numbers = itertools.count(1)
    monkeypatch.setattr(slurm_commands, "submit", lambda name, script: next(numbers))
    client: Any = SimpleNamespace(nthreads=dict)
    scheduler: Any = SimpleNamespace(aliases={})
    settings = ClusterSettings(kind="slurm", workers=2, log_folder=str(tmp_path))
    made = SlurmCluster(client, scheduler, settings, "fusionkit-0", "")
    made.start()
    return made


@pytest.mark.parametrize(
    ("left", "looks"), [({}, 1), ({2: JobState("PENDING", "Resources")}, 3)], ids=["none is left", "the other waits"]
)
def test_jobs_that_end_at_once_are_an_error_also_where_others_wait(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch, left: dict[int, JobState], looks: int
) -> None:
    """Each job that takes an ended one's place has ended by the next look."""
    monkeypatch.setattr(slurm_commands, "active", lambda name: left)
    for _ in range(looks - 1):
        cluster.heal()
    with pytest.raises(FusionkitError, match=ENDED):
        cluster.heal()


def test_a_job_that_ends_at_once_is_replaced_while_another_starts(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_commands, "active", lambda name: {2: JobState("RUNNING", "None")})
    for _ in range(5):
        cluster.heal()
    assert cluster._jobs == {2, 7}


def test_a_job_has_the_name_by_which_it_is_found_whatever_the_user_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """``sbatch`` takes SBATCH_JOB_NAME and later directives before a script's own name."""
    asked = list[list[str]]()

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "7\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert slurm_commands.submit("fusionkit-0", "#!/bin/bash\n#SBATCH --job-name=mine\n") == 7
    assert asked == [["sbatch", "--parsable", "--job-name=fusionkit-0"]]
