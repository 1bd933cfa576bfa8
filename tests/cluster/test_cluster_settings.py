"""Settings of a cluster: what a file may say, and one clear refusal of all else, before any work."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fusionkit.cluster import ClusterSettings, local, open_cluster, read_settings
from fusionkit.cluster.dask_config import started
from fusionkit.cluster.job_script import job_script
from fusionkit.cluster.local import devices, environments_of
from fusionkit.cluster.part_map import _told
from fusionkit.cluster.settings import for_sweep
from fusionkit.encode.batches import Part
from fusionkit.errors import FusionkitError, UsageError
from fusionkit.machine.resources import cores

WHOLE = """
kind: slurm
workers: 8
walltime: "04:00:00"
environment: [module load cuda, "source venv/bin/activate"]
gpus: 1
memory: 16GB
start-timeout: 90
"""


def test_a_file_is_read_and_flags_go_first(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(WHOLE)
    found = read_settings(path, workers=2, kind=None)
    assert found == ClusterSettings(
        kind="slurm", workers=2, walltime="04:00:00", gpus=1, memory="16GB", start_timeout=90.0,
        environment=("module load cuda", "source venv/bin/activate"),
    )  # fmt: skip


def test_the_same_keys_may_stand_below_cluster_in_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text("store: a.store\ncluster:\n  kind: local\n  workers: 3\n")
    assert read_settings(path) == ClusterSettings(workers=3)


@pytest.mark.parametrize(
    ("content", "what", "remedy"),
    [
        ("wrokers: 3", "unknown cluster setting 'wrokers'", "did you mean 'workers'?"),
        ("kind: slrum", "unknown kind of cluster 'slrum'", "did you mean 'slurm'?"),
        ("kind: tcp://", "is no address of a scheduler", "dask scheduler"),
        ("kind: tcp://head-node", "is no address of a scheduler", "dask scheduler"),
        ("kind: tcp://head-node:many", "is no address of a scheduler", "dask scheduler"),
        ("workers: 0", ", line 1: workers is out of range", ""),
        ("workers: many", ", line 1: 'workers' has a value of another kind", ""),
        ("gpus: 2", "gpus is out of range", ""),
        ("threads: 1\nwalltime: tomorrow", ", line 2: walltime has a wrong value", ""),
        ("memory: much", "this is no number of bytes", ""),
        ("memory: 16000", "a worker cannot start in so little memory", "add the unit"),
        ('partition: "gpu\\n#SBATCH --nodes=9"', "partition has a wrong value", ""),
        ("start_timeout: 0", "start-timeout is out of range", ""),
        ("public: perhaps", "'public' has a value of another kind", ""),
        ("public: [true]", "'public' has a value of another kind", ""),
        ("tls_ca: nowhere.pem", "'tls_ca' names no file", "check the path"),
        ("kind: tls://127.0.0.1:8786", "needs certificates", ""),
        ("[a list]", "holds no cluster configuration", ""),
        ("", "holds no cluster configuration", "one key a line"),
        ("fusion: last\ncluster: local", ", line 2: 'cluster' is no block", "kind: local"),
        ("fusion: last\ncluster:", ", line 2: 'cluster' is no block", "kind: local"),
        ("workers: [", "no cluster configuration that can be read", "mend that line"),
    ],
)
def test_a_wrong_setting_is_one_message(tmp_path: Path, content: str, what: str, remedy: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        read_settings(path)
    assert what in str(caught.value)
    assert remedy in str(caught.value.remedy)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["tcp://head-node:8786", "tcp://10.0.0.5:8786", "tcp://[::1]:8786"])
def test_the_address_of_a_scheduler_is_a_host_and_a_port(kind: str) -> None:
    assert ClusterSettings(kind=kind).kind == kind


@pytest.mark.parametrize("walltime", ["90", "120:30", "120:00:00", "2-00", "1-12:30:00"])
def test_walltimes_are_those_that_sbatch_takes(walltime: str) -> None:
    assert ClusterSettings(kind="slurm", walltime=walltime).walltime == walltime


def test_quotes_change_nothing_and_a_key_alone_leaves_the_default(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    environment = "environment: |\n  module load cuda\n  . venv/bin/activate\n"
    path.write_text(f'kind: slurm\npublic: "True"\npartition:\n{environment}')
    commands = ("module load cuda", ". venv/bin/activate")
    assert read_settings(path) == ClusterSettings(kind="slurm", public=True, environment=commands)


@pytest.mark.parametrize(
    ("content", "received"),
    [
        ("threads: 2\nwalltime: 04:00:00", "no kind"),
        ("threads: 2\nlog-folder: logs", "no kind"),
        ("kind: local\nenvironment: [module load cuda]", "kind: local"),
        ("kind: tcp://head-node:8786\npartition: gpu", "kind: tcp://head-node:8786"),
    ],
)
def test_settings_of_jobs_are_refused_where_there_are_none(tmp_path: Path, content: str, received: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"line 2: .* is a setting of Slurm's jobs") as caught:
        read_settings(path)
    assert caught.value.received == received
    assert "--cluster slurm" in str(caught.value.remedy)
    assert read_settings(path, kind="slurm").kind == "slurm"


def test_a_file_for_slurm_may_be_used_without(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(WHOLE)
    assert read_settings(path, kind="local").kind == "local"
    path.write_text("partition:\ngpus: 0\n")
    assert read_settings(path) == ClusterSettings(gpus=0)


def test_the_interpreter_of_a_job_may_be_below_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    script = job_script(ClusterSettings(kind="slurm", python="~/env/bin/python"), "name", "tcp://host:1", 0)
    assert "/home/somebody/env/bin/python -P -m distributed" in script


def test_a_worker_of_a_job_imports_from_no_folder_that_another_user_may_own() -> None:
    """Dask imports from its scratch folder first; its default is one folder of /tmp for all users."""
    settings = ClusterSettings(kind="slurm", environment=("module load cuda",))
    lines = job_script(settings, "name", "tcp://host:1", 0).splitlines()
    scratch = lines.index('export DASK_TEMPORARY_DIRECTORY="$scratch"')
    worker = next(at for at, line in enumerate(lines) if "dask_worker" in line)
    assert lines[scratch - 1].startswith("scratch=$(mktemp -d")
    assert lines.index("module load cuda") < scratch < worker
    assert lines[-3:] == ["status=$?", 'rm -rf "$scratch"', "exit $status"]


@pytest.mark.parametrize(
    ("given", "listens"),
    [({}, "--host 127.0.0.1"), ({"interface": "ib0"}, "--interface ib0"), ({"host": "10.0.0.5"}, None)],
    ids=["loopback", "interface", "host"],
)
def test_a_worker_of_a_job_listens_on_loopback_where_its_scheduler_does(
    given: dict[str, Any], listens: str | None
) -> None:
    """Without an address Dask's worker listens on every interface; with public, without TLS too."""
    script = job_script(ClusterSettings(kind="slurm", public=True, **given), "name", "tcp://host:1", 0)
    (worker,) = (line.split() for line in script.splitlines() if "dask_worker" in line)
    found = [f"{name} {worker[worker.index(name) + 1]}" for name in ("--host", "--interface") if name in worker]
    assert found == ([] if listens is None else [listens])


def test_a_scheduler_imports_from_no_folder_that_another_user_may_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = tmp_path / "dask-scratch-space"
    common.mkdir()
    common.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = list(sys.path)
    with started(ClusterSettings(public=True), {}):
        added = [Path(each) for each in sys.path if each not in before]
        assert added  # as long as Dask does so
        assert [each for each in added if common in each.parents] == []
        private = [each for each in tmp_path.iterdir() if each != common]
        assert [stat.S_IMODE(each.stat().st_mode) for each in private] == [0o700]
    assert sys.path == before
    assert list(tmp_path.iterdir()) == [common]


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("", []), ("-1", []), ("0,1", []), ("0, 2", ["0", "2"]), ("1,-1,0", ["1"]), (None, ["0", "1"])],
)
def test_the_gpus_are_those_that_cuda_shows(
    visible: str | None, gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices() == gpus


def test_an_error_of_a_library_is_told_as_ours(tmp_path: Path) -> None:
    def killed() -> Iterator[tuple[Part, Any]]:
        yield Part("train", 0), {}
        raise RuntimeError("the worker was killed\nand more")

    told = _told(killed(), tmp_path)
    assert next(told) == (Part("train", 0), {})
    with pytest.raises(FusionkitError, match="on the cluster failed") as caught:
        next(told)
    assert caught.value.received == "RuntimeError: the worker was killed"


def test_certificates_are_three_files(certificates: dict[str, Any]) -> None:
    assert ClusterSettings(**certificates).tls_files == certificates
    assert ClusterSettings(host="0.0.0.0").tls_files == {}
    with pytest.raises(UsageError, match="TLS needs three files"):
        ClusterSettings(tls_ca=certificates["tls_ca"])


@pytest.mark.parametrize(
    ("given", "gpus", "expected"),
    [
        ({"workers": 3, "threads": 2}, [], [("", 2)] * 3),
        ({}, [], [("", 1)] * cores()),
        ({"workers": 1}, [], [("", cores())]),
        ({"threads": 1, "gpus": 0}, ["0", "1"], [("", 1)] * cores()),
        ({"threads": 4}, ["0", "3"], [("0", 4), ("3", 4)]),
        ({"workers": 1, "threads": 4}, ["0", "3"], [("0", 4)]),
        ({"workers": 1}, ["0", "3"], [("0", cores())]),
        ({}, ["0", "3"], [("0", max(cores() // 2, 1)), ("3", max(cores() // 2, 1))]),
    ],
)
def test_a_worker_has_one_gpu_of_its_own_or_its_share_of_the_cores(
    given: dict[str, Any], gpus: list[str], expected: list[tuple[str, int]]
) -> None:
    found = environments_of(ClusterSettings(**given), gpus)
    assert [(each["CUDA_VISIBLE_DEVICES"], int(each["OMP_NUM_THREADS"])) for each in found] == expected


def test_a_scheduler_that_cannot_listen_says_why() -> None:
    settings = ClusterSettings(interface="nowhere0", public=True, workers=1, gpus=0)
    with pytest.raises(FusionkitError, match="no cluster can be started") as caught, open_cluster(settings):
        pass
    assert "nowhere0" in str(caught.value.received)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=1", "glibc.malloc.check=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_a_worker_of_a_job_has_huge_pages_unless_the_user_says_otherwise(before: str | None, expected: str) -> None:
    lines = job_script(ClusterSettings(kind="slurm"), "name", "tcp://host:1", 0).splitlines()
    (line,) = (line for line in lines if "hugetlb" in line)
    command = f'set -eu\n{line}\nprintf %s "$GLIBC_TUNABLES"'
    given = {} if before is None else {"GLIBC_TUNABLES": before}
    assert subprocess.run(["/bin/bash", "-c", command], env=given, stdout=subprocess.PIPE).stdout.decode() == expected


@pytest.mark.parametrize("before", [None, "yes"])
def test_new_processes_of_a_cluster_do_not_look_into_the_working_folder_first_and_have_huge_pages(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even those that multiprocessing starts before Dask sets any variable."""
    monkeypatch.setenv("PYTHONSAFEPATH", before or "")
    if before is None:
        monkeypatch.delenv("PYTHONSAFEPATH")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.35"))
    found = list[str | None]()

    def refused(*_: object) -> None:
        found.extend(os.environ.get(name) for name in ("PYTHONSAFEPATH", "GLIBC_TUNABLES"))
        raise FusionkitError("enough seen")

    monkeypatch.setattr(local, "started", refused)
    settings = ClusterSettings(public=True, workers=1, gpus=0)
    with pytest.raises(FusionkitError, match="enough seen"), open_cluster(settings):
        pass
    assert found == ["1", "glibc.malloc.hugetlb=1"]
    assert os.environ.get("PYTHONSAFEPATH") == before
    assert "GLIBC_TUNABLES" not in os.environ


@pytest.mark.parametrize(("given", "gpus"), [({"workers": 3}, ["0", "1"]), ({"gpus": 1}, [])])
def test_more_workers_than_gpus_are_refused(given: dict[str, Any], gpus: list[str]) -> None:
    with pytest.raises(UsageError, match="more workers than GPUs"):
        environments_of(ClusterSettings(**given), gpus)


@pytest.mark.parametrize(
    ("kind", "threads", "workers"), [("local", 4, 8), ("slurm", 4, 3), ("tcp://head:8786", None, 8)]
)
def test_a_sweep_has_cores_for_its_threads_and_no_jobs_without_runs(
    kind: str, threads: int | None, workers: int
) -> None:
    found = for_sweep(ClusterSettings(kind=kind, workers=8), threads=4, runs=3)
    assert (found.threads, found.workers) == (threads, workers)
    assert for_sweep(ClusterSettings(threads=8), threads=4, runs=3).threads == 8
