"""The jobs of a cluster's workers, with the test in the place of Slurm."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from fusionkit.cluster import ClusterSettings, protocol, slurm, slurm_commands
from fusionkit.cluster.job_script import job_script
from fusionkit.cluster.slurm import SlurmCluster
from fusionkit.cluster.slurm_commands import JobState, outside_of_jobs
from fusionkit.errors import FusionkitError

ENDED = "the jobs end before their workers connect"


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


def test_a_cancel_without_an_answer_ends_no_sweep_and_is_asked_again(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job 1 has lost its connection, and scancel does not answer at the first look."""
    monkeypatch.setattr(slurm, "DISCONNECTED", 0.0)
    monkeypatch.setattr(slurm_commands, "active", lambda name: dict.fromkeys((1, 2), JobState("RUNNING", "None")))
    asked = Mock(side_effect=[FusionkitError("Slurm does not answer"), None])
    monkeypatch.setattr(slurm_commands, "_run", asked)
    cluster._arrived = {1: 0.0}
    cluster.heal()
    assert cluster._jobs == {1, 2}
    cluster.heal()
    assert cluster._jobs == {2, 3}
    assert [each.args[0] for each in asked.call_args_list] == [["scancel", "--name=fusionkit-0", "1"]] * 2


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
    """``sbatch`` takes SBATCH_JOB_NAME before a script's own name, and the last of two names on its command line."""
    asked = list[list[str]]()

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "7\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert slurm_commands.submit("fusionkit-0", "#!/bin/bash\n#SBATCH --job-name=mine\n") == 7
    assert asked == [["sbatch", "--parsable", "--job-name=mine", "--job-name=fusionkit-0"]]


def test_what_a_script_asks_for_is_on_the_command_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``sbatch`` takes variables like SBATCH_PARTITION before a script's directives."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > '{tmp_path}/asked'\necho '7;cluster'\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{os.environ['PATH']}")
    settings = ClusterSettings(
        kind="slurm", partition="gpu", walltime="04:00:00", log_folder=str(tmp_path / 'our "logs"'),
        directives=("--qos=short", "--comment='two words'"), environment=("#SBATCH --partition=other",),
    )  # fmt: skip
    script = job_script(settings, "fusionkit-0", "tcp://host:1", 1)
    assert "#SBATCH --partition=other" in script.splitlines()
    assert slurm_commands.submit("fusionkit-0", script) == 7
    assert (tmp_path / "asked").read_text().splitlines() == [
        "--parsable",
        "--job-name=fusionkit-0",
        f'--output={tmp_path}/our "logs"/fusionkit-0-%j.log',
        "--partition=gpu",
        "--time=04:00:00",
        "--ntasks=1",
        "--cpus-per-task=1",
        "--gres=gpu:1",
        "--no-requeue",
        "--open-mode=append",
        "--qos=short",
        "--comment=two words",
        "--job-name=fusionkit-0",
    ]


def test_what_a_user_has_set_for_looking_at_jobs_hides_none() -> None:
    own = {"SQUEUE_STATES": "PENDING", "SCANCEL_USER": "somebody", "SLURM_CONF": "/c", "CUDA_VISIBLE_DEVICES": "0"}
    assert outside_of_jobs(own) == {"SLURM_CONF": "/c", "CUDA_VISIBLE_DEVICES": "0"}
    assert outside_of_jobs({**own, "SLURM_JOB_ID": "7"}) == {"SLURM_CONF": "/c"}


@pytest.mark.parametrize(
    ("partition", "variable", "gpus"),
    [(None, None, False), ("gpu", None, True), (None, "gpu", True), ("cpu", "gpu", False)],
)
def test_jobs_ask_for_a_gpu_where_the_partition_that_they_go_to_has_any(
    monkeypatch: pytest.MonkeyPatch, partition: str | None, variable: str | None, gpus: bool
) -> None:
    """``*`` marks the default partition."""
    lines = {"cpu": "cpu* (null)", "gpu": "gpu gpu:h200:8"}

    def asked(command: list[str]) -> Any:
        chosen = [word.removeprefix("--partition=") for word in command if word.startswith("--partition=")]
        return SimpleNamespace(stdout="".join(f"{lines[name]}\n" for name in chosen or lines))

    monkeypatch.setattr(slurm_commands, "_run", asked)
    monkeypatch.setenv("SBATCH_PARTITION", variable) if variable else monkeypatch.delenv("SBATCH_PARTITION", False)
    assert slurm_commands.offers_gpus(partition) is gpus
