"""The ready-made batch scripts, as they lie in pipelines/slurm, on a real Slurm."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusionkit.bundled import travel_desk
from fusionkit.encode import encode
from fusionkit.encoder import Encoder
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec, RunSpec
from fusionkit.store import Store, is_complete, open_store

SCRIPTS = Path(__file__).parents[2] / "pipelines" / "slurm"
FIT = (
    "--task", "classification", "--label", "intent", "--fusion", "last", "--epochs", 1, "--seeds", 2, "--floor", "none",
)  # fmt: skip
SMALL = ("--mem=1000", "--cpus-per-task=1")  # all at once on two nodes
ALL = ("encode.sbatch", "encode-array.sbatch", "fit.sbatch", "fit-array.sbatch")
Until = Callable[..., None]
Content = Callable[[Path], dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Slurm itself would read a % in the working folder's name, as part of the log's."""
    (tmp_path / "a folder").mkdir()
    return tmp_path / "a folder"


@pytest.fixture(autouse=True)
def _settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small worker, and the command line of this interpreter on the path."""
    (folder / "cluster.yaml").write_text("kind: slurm\nworkers: 1\nmemory: 1GB\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "fusionkit").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fusionkit "$@"\n')
    (folder / "bin" / "fusionkit").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FUSIONKIT_CLUSTER", str(folder / "cluster.yaml"))
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS.parents[1]))
    monkeypatch.chdir(folder)


def said(folder: Path) -> str:
    """The logs of all jobs."""
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("*.log")))


def options(script: str) -> tuple[str, ...]:
    return ("--array=1-2", *SMALL) if "array" in script else SMALL


# By an array and by a driver in a job, for both commands.
@pytest.mark.soak("slurm")
def test_the_batch_scripts_encode_and_fit_by_a_driver_in_a_job_and_by_an_array(
    empty: Any, folder: Path, minilm: Encoder, content: Content, until: Until
) -> None:
    corpus = travel_desk("en")
    encodes, fits = ([name for name in ALL if name.startswith(verb)] for verb in ("encode", "fit"))
    for name in encodes:
        empty.run("sbatch", *options(name), SCRIPTS / name, corpus, "--out", folder / name, "--rows", "mean")
    opened = open_source(str(corpus))
    encode(opened, guess_columns(opened), folder / "serial", EncodeSpec(rows="mean"), minilm)
    for name in fits:
        empty.run("sbatch", *options(name), SCRIPTS / name, folder / "serial", "--out", folder / f"runs-{name}", *FIT)
    until(lambda: empty.jobs() == {}, 300)
    for name in encodes:
        assert is_complete(folder / name), said(folder)
        assert content(folder / name) == content(folder / "serial")
    store = open_store(folder / "serial")
    specs = expand(store, task="classification", label="intent", fusions=("last",), epochs=(1,), seeds=2)
    alone = {spec.digest: record["scores"] for spec, record in zip(specs, fit_here(store, specs, folder), strict=True)}
    for name in fits:
        runs = folder.glob(f"runs-{name}/*/run.json")
        assert {path.parent.name: json.loads(path.read_text())["scores"] for path in runs} == alone, said(folder)


def fit_here(store: Store, specs: list[RunSpec], folder: Path) -> list[dict[str, Any]]:
    """The records of one process."""
    watch: Any = SimpleNamespace(**dict.fromkeys(("begin", "epoch", "run", "elsewhere", "say"), lambda *_: None))
    return fit(store, specs, RunsFolder(folder / "alone"), watch)
