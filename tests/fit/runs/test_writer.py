"""Runs are told of when they are safe, in their order, and a disk that refuses one is heard."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fusionkit.errors import FusionkitError
from fusionkit.runs.background_writer import MOST_WAITING, RunWriter
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

SPECS = [
    RunSpec(store="s", task="tagging", label="x", fusion="last", head="tagger", init_seed=seed) for seed in range(40)
]


def record_of(spec: RunSpec) -> dict[str, Any]:
    return {"spec": spec.to_dict(), "status": "finished", "labels": ["é", '"', "\u2028"], "curve": [{"loss": 0.5}]}


def test_runs_are_told_of_in_their_order_when_they_are_there(tmp_path: Path) -> None:
    runs, told = RunsFolder(tmp_path), list[RunSpec]()

    def kept(spec: RunSpec) -> None:
        assert threading.current_thread() is threading.main_thread()
        assert (tmp_path / spec.digest / "weights.safetensors").is_file()
        found = runs.record(spec)
        assert found is not None
        assert found["weights_sha256"]
        told.append(spec)

    with RunWriter(runs, kept) as keeping:
        for spec in SPECS:
            keeping.write(spec, record_of(spec), {"a": torch.ones(3)})
    assert told == SPECS
    found = runs.record(SPECS[3])
    assert found is not None
    assert {name: found[name] for name in record_of(SPECS[3])} == record_of(SPECS[3])


def test_what_waits_for_a_slow_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, told = threading.Event(), list[RunSpec]()
    monkeypatch.setattr(RunsFolder, "write", lambda runs, *given: go.wait(60))
    with RunWriter(RunsFolder(tmp_path), told.append) as keeping:
        for spec in SPECS[:MOST_WAITING]:
            keeping.write(spec, {}, {})
        assert told == []
        threading.Timer(0.1, go.set).start()
        keeping.write(SPECS[MOST_WAITING], {}, {})
        assert told[0] == SPECS[0]
    assert told == SPECS[: MOST_WAITING + 1]


def test_a_disk_that_refuses_one_run_is_an_error_and_the_runs_before_it_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, write = list[RunSpec](), RunsFolder.write

    def full(runs: RunsFolder, spec: RunSpec, *given: Any) -> None:
        if spec == SPECS[2]:
            raise FusionkitError("the disk is full")
        write(runs, spec, *given)

    monkeypatch.setattr(RunsFolder, "write", full)

    def keep_five() -> None:
        with RunWriter(RunsFolder(tmp_path), told.append) as keeping:
            for spec in SPECS[:5]:
                keeping.write(spec, record_of(spec), {})

    with pytest.raises(FusionkitError, match="the disk is full"):
        keep_five()
    assert told[:2] == SPECS[:2]
    assert SPECS[2] not in told
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("keeping runs")]
