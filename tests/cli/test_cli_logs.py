"""``fit --log-to``: what a sweep logs, and what it does not log twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusionkit.logs import logger

Command = Callable[..., Any]


def test_a_sweep_logs_runs_of_now_and_of_before_once_each(
    small: Path, tmp_path: Path, fusionkit: Command, monkeypatch: Any
) -> None:
    runs, logged = tmp_path / "runs", tmp_path / "runs" / "logs" / "tensorboard"
    options = ("fit", small, "--floor", "none", "--out", runs, "--fusion", "last", "--epochs", 2)
    assert fusionkit(*options).code == 0
    first = fusionkit(*options, "--seeds", 3, "--log-to", "tensorboard", "--workers", 2)
    assert (first.code, "tensorboard: 3 runs logged now" in first.err) == (0, True), first.err
    digests = {path.parent.name for path in runs.glob("*/run.json")}
    assert {path.name for path in logged.iterdir()} == digests
    assert len(digests) == len([*logged.glob("*/events.*")]) == 3
    again = fusionkit(*options, "--seeds", 3, "--log-to", "tensorboard")
    assert "tensorboard: 0 runs logged now" in again.err
    assert len([*logged.glob("*/events.*")]) == 3
    # Without its package nothing is begun.
    monkeypatch.setitem(logger.KINDS, "wandb", ("fusionkit.logs.wandb", ("no_such_package",)))
    refused = fusionkit(*options, "--seeds", 4, "--log-to", "wandb")
    assert (refused.code, "pip install 'fusionkit[wandb]'" in refused.err) == (2, True)
    assert len([*runs.glob("*/run.json")]) == 3
