"""Jobs that become workers, jobs that do not, and what is said of them: on a real Slurm."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.cluster.job_script import job_script
from fusionkit.cluster.settings import ClusterSettings
from fusionkit.cluster.slurm import SlurmCluster, open_slurm, printed_job
from fusionkit.cluster.slurm_commands import outside_of_jobs
from fusionkit.cluster.task_map import FailedItem, each_done
from fusionkit.errors import FusionkitError, UsageError

Until = Callable[..., None]


def settings(folder: Path, **given: Any) -> ClusterSettings:
    return ClusterSettings(**{"kind": "slurm", "workers": 2, "log_folder": str(folder / "logs"), **given})


def healed(cluster: SlurmCluster) -> int:
    """The workers that are there."""
    cluster.heal()
    return cluster.count.up


def working() -> tuple[Any, Any]:
    """Functions for workers, which cannot import tests: made in here, they travel whole."""

    def seen() -> tuple[str | None, ...]:
        import os

        names = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "OMP_NUM_THREADS", "SEEN")
        return tuple(os.environ.get(name) for name in names)

    def slowly(item: int) -> int:
        import time

        time.sleep(0.05)
        return item * item

    return seen, slowly


def test_each_worker_is_one_job_with_one_gpu_and_one_that_is_cancelled_is_replaced_all_of_it_by_tls(
    empty: Any, folder: Path, certificates: dict[str, str], until: Until
) -> None:
    with open_slurm(settings(folder, environment=("export SEEN=yes", "cd /"), **certificates)) as cluster:
        assert str(cluster.client.scheduler_info()["address"]).startswith("tls://127.0.0.1:")
        until(lambda: healed(cluster) == 2)
        seen, slowly = working()
        told = list(cluster.client.run(seen).values())
        assert len(told) == 2
        first = set(empty.jobs())
        assert {int(each[1]) for each in told} == first
        assert [each[0] for each in told] == ["0", "0"]  # each the only one that its job has
        assert {each[2:] for each in told} == {("1", "yes")}
        records: dict[int, int] = {}

        aside: list[FailedItem[int]] = []
        for item, record in each_done(cluster, slowly, range(120), on_aside=aside.append):
            assert item not in records
            records[item] = record
            if len(records) == 10:
                empty.run("scancel", min(first))
                until(lambda: min(first) not in empty.jobs())
        assert aside == []
        assert records == {item: item * item for item in range(120)}
        assert cluster.count.lost == 1
        until(lambda: healed(cluster) == 2)
        assert len(set(empty.jobs()) - first) == 1
        logs = sorted((folder / "logs").glob("*.log"))
        assert len(logs) == 3
        assert all("Registered to" in log.read_text() for log in logs)


def test_workers_that_came_and_went_before_anybody_looked_are_replaced(empty: Any, folder: Path, until: Until) -> None:
    with open_slurm(settings(folder)) as cluster:
        until(lambda: len(cluster.client.scheduler_info()["workers"]) == 2)
        first = set(empty.jobs())
        empty.run("scancel", *map(str, first))  # as Slurm does when their time is over
        until(lambda: empty.jobs() == {})
        until(lambda: healed(cluster) == 2)
        assert not first & set(empty.jobs())


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"partition": "nowhere"}, UsageError, "invalid partition specified: nowhere"),
        ({"account": "a", "directives": ("--nonsense",)}, UsageError, "unrecognized option '--nonsense'"),
        ({"memory": "1TB"}, UsageError, "Requested node configuration is not available"),
        ({"threads": 99}, FusionkitError, "Partition"),
        ({"walltime": "48:00:00"}, FusionkitError, "Partition"),
        ({"python": "/nowhere/bin/python"}, FusionkitError, "/nowhere/bin/python: No such file or directory"),
        ({"environment": ("unset HOME", "exit 7")}, FusionkitError, "an empty log"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_job_that_cannot_become_a_worker_is_one_clear_error(
    empty: Any, folder: Path, until: Until, given: dict[str, Any], error: type[FusionkitError], says: str
) -> None:
    with pytest.raises(FusionkitError) as caught, open_slurm(settings(folder, **given)) as cluster:
        until(lambda: healed(cluster) == 2)
    assert type(caught.value) is error
    assert says in str(caught.value)
    assert "--print-job" in str(caught.value)


def test_a_full_cluster_is_waited_for_and_its_reason_told(empty: Any, folder: Path, until: Until) -> None:
    held = ("--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 600")
    holding = empty.run("sbatch", "--parsable", *held).strip()
    try:
        with (
            open_slurm(settings(folder)) as cluster,
            pytest.raises(FusionkitError, match=r"(?s)no worker for 1.5 seconds.*PENDING in Slurm's queue: (Res|Prio)"),
        ):
            list(each_done(cluster, working()[1], range(2), on_aside=print, start_timeout=1.5))
        assert list(empty.jobs()) == [int(holding)]
    finally:
        empty.run("scancel", holding)
        until(lambda: empty.jobs() == {})


def test_the_printed_job_is_one_that_slurm_takes(empty: Any, folder: Path, until: Until) -> None:
    """Its lines are those that are submitted; what they mean is seen in Slurm's own account of the job."""
    asked = settings(
        folder, partition="test", walltime="00:10:00", memory="2GB", threads=2, directives=("--nice=7", "--comment=us"),
        environment=("module load nothing || true",),
    )  # fmt: skip
    printed = printed_job(asked)
    assert printed.splitlines()[0] == "#!/bin/bash"
    assert "module load nothing || true" in printed.splitlines()
    assert f"{shlex.quote(sys.executable)} -P -m distributed.cli.dask_worker tls://SCHEDULER:PORT" in printed
    job = subprocess.run(
        ["sbatch", "--parsable", "--hold"], input=printed, text=True, capture_output=True, check=True
    ).stdout.strip()
    try:
        account = empty.run("scontrol", "show", "job", job, "--oneliner")
    finally:
        empty.run("scancel", job)
        until(lambda: empty.jobs() == {})
    told = dict(each.partition("=")[::2] for each in account.split())
    assert told["Requeue"] == "0"
    assert told["TimeLimit"] == "00:10:00"
    assert told["CPUs/Task"] == "2"
    assert told["MinMemoryNode"] == "1907M"
    assert told["TresPerNode"] == "gres:gpu:1"
    assert told["Comment"] == "us"
    assert f"/logs/fusionkit-{job}.log" in account


def test_gpus_are_asked_for_where_the_partition_has_any(empty: Any, folder: Path) -> None:
    assert "#SBATCH --gres=gpu:1" in printed_job(settings(folder))
    assert "--gres" not in printed_job(settings(folder, gpus=0))


def test_certificates_reach_the_worker(folder: Path) -> None:
    for name in ("ca", "cert", "key"):
        (folder / f"{name}.pem").touch()
    given = {f"tls_{name}": str(folder / f"{name}.pem") for name in ("ca", "cert", "key")}
    script = job_script(settings(folder, **given, interface="lo"), "n", "tls://here:1", 0)
    line = next(line for line in script.splitlines() if "dask_worker" in line)
    for option, name in (("--tls-ca-file", "ca"), ("--tls-cert", "cert"), ("--tls-key", "key")):
        assert f"{option} '{folder / name}.pem'" in line
    assert "--interface lo" in line


def test_a_driver_inside_a_job_hands_none_of_that_job_on() -> None:
    inside = {
        "SLURM_JOB_ID": "7",
        "SLURM_MEM_PER_NODE": "100",
        "SLURM_CONF": "/c",
        "CUDA_VISIBLE_DEVICES": "0",
        "A": "b",
    }
    assert outside_of_jobs(inside) == {"SLURM_CONF": "/c", "A": "b"}
    del inside["SLURM_JOB_ID"]
    assert outside_of_jobs(inside) == inside
