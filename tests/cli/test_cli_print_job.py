"""``--print-job``: the job that a worker would be, on standard output; nothing is started, nothing is made."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
SETTINGS = """
kind: slurm
partition: long
walltime: "01:00:00"
threads: 3
environment: [module load cuda]
log_folder: {logs}
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings of a cluster, on a machine without Slurm: one that asks for no GPU has nothing to ask of it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "gpu.yaml"
    path.write_text(SETTINGS.format(logs=tmp_path / "logs"))
    return path


def is_the_job(printed: str, asked: Path) -> None:
    lines = printed.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "#SBATCH --partition=long" in lines
    assert "#SBATCH --time=01:00:00" in lines
    assert "#SBATCH --cpus-per-task=3" in lines
    assert "module load cuda" in lines
    assert "export OMP_NUM_THREADS=3" in lines
    worker = f"{shlex.quote(sys.executable)} -P -m distributed.cli.dask_worker tls://SCHEDULER:PORT"
    assert any(line.startswith(worker) for line in lines)
    assert "--gres" not in printed
    assert [path.name for path in asked.parent.iterdir()] == [asked.name]


def test_encode_prints_the_job_of_its_workers(fusionkit: Command, asked: Path, corpus: Path) -> None:
    words = ("encode", corpus, "--out", asked.parent / "s", "--device", "cpu", "--cluster-config", asked)
    result = fusionkit(*words, "--print-job")
    assert (result.code, result.err) == (0, "")
    is_the_job(result.out, asked)


def test_fit_prints_the_job_of_its_workers(fusionkit: Command, asked: Path, small: Path) -> None:
    words = (
        "fit",
        small,
        "--out",
        asked.parent / "runs",
        "--label",
        "label",
        "--device",
        "cpu",
        "--cluster-config",
        asked,
    )
    result = fusionkit(*words, "--print-job")
    assert (result.code, result.err) == (0, "")
    is_the_job(result.out, asked)


def test_a_job_by_tls_names_such_a_scheduler(fusionkit: Command, asked: Path, corpus: Path) -> None:
    pem = asked.with_suffix(".pem")
    pem.touch()
    with asked.open("a") as file:
        file.write("".join(f"tls_{name}: {pem}\n" for name in ("ca", "cert", "key")))
    result = fusionkit(
        "encode", corpus, "--out", asked.parent / "s", "--device", "cpu", "--cluster-config", asked, "--print-job"
    )
    assert " tls://" in result.out, result.err
    assert f"--tls-key {pem}" in result.out


@pytest.mark.parametrize("device", ["cuda:1", "gpu"])
def test_encode_refuses_a_device_that_no_worker_has(
    fusionkit: Command, corpus: Path, tmp_path: Path, device: str
) -> None:
    result = fusionkit("encode", corpus, "--out", tmp_path / "s", "--device", device, "--cluster", "local")
    assert (result.code, result.out) == (2, "")
    assert f"the workers of a cluster have no device {device!r}" in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--cluster", "local")], ids=["none", "local"])
def test_only_slurm_has_jobs_to_print(
    fusionkit: Command, corpus: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    result = fusionkit("encode", corpus, "--out", tmp_path / "s", *options, "--print-job")
    assert (result.code, result.out) == (2, "")
    assert "add --cluster slurm" in result.err
    assert list(tmp_path.iterdir()) == []
