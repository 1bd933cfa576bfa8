"""The ready-made batch scripts, as they lie in pipelines/slurm, on a real Slurm."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.bundled import travel_desk
from fusionkit.encode import encode
from fusionkit.encoder import Encoder
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import is_complete

SCRIPTS = Path(__file__).parents[2] / "pipelines" / "slurm"
FIT = ("--task", "classification", "--label", "intent", "--fusion", "last", "--epochs", 1, "--seeds", 2)
SMALL = ("--mem=1000", "--cpus-per-task=1")  # all at once on two nodes
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    verb: {f"{verb}.sbatch": SMALL, f"{verb}-array.sbatch": ("--array=1-2", *SMALL)} for verb in ("encode", "fit")
}
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


def test_the_batch_scripts_encode_and_fit_by_a_driver_in_a_job_and_by_an_array(
    empty: Any, folder: Path, minilm: Encoder, content: Content, until: Until
) -> None:
    corpus = travel_desk("en")
    for name, options in OPTIONS["encode"].items():
        empty.run("sbatch", *options, SCRIPTS / name, corpus, "--out", folder / name, "--rows", "mean")
    opened = open_source(str(corpus))
    encode(opened, guess_columns(opened), folder / "serial", EncodeSpec(rows="mean"), minilm)
    for name, options in OPTIONS["fit"].items():
        empty.run("sbatch", *options, SCRIPTS / name, folder / "serial", "--out", folder / f"runs-{name}", *FIT)
    until(lambda: empty.jobs() == {}, 300)
    for name in OPTIONS["encode"]:
        assert is_complete(folder / name), said(folder)
        assert content(folder / name) == content(folder / "serial")
    by_driver, by_array = (
        {path.parent.name: json.loads(path.read_text())["scores"] for path in folder.glob(f"runs-{name}/*/run.json")}
        for name in OPTIONS["fit"]
    )
    assert len(by_driver) == 2, said(folder)
    assert by_driver == by_array
