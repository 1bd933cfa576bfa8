"""Joint intent and slots from the command line: fit, results, info and predict over the bundled corpus."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def runs(fusionkit: Command, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A joint run of each kind."""
    out = tmp_path_factory.mktemp("joint") / "runs"
    for choices in (("--pool", "mean"), ("--label", "slots,intent", "--head", "classifier+crf")):
        for joint_fusion in ("shared", "each"):
            given = ("--joint-fusion", joint_fusion, "--fusion", "linear", "--epochs", 2, "--out", out)
            done = fusionkit("fit", store, "--task", "joint", *choices, *given, "--json")
            assert done.code == 0, done.err
            [row] = done.json
            assert (row["task"], row["label"], row["joint_fusion"]) == ("joint", "intent,slots", joint_fusion)
            assert row["metric"] == "mean"
    return out


def test_results_tell_the_kinds_apart_and_show_any_score(fusionkit: Command, runs: Path) -> None:
    for metric in ("mean", "frame", "intent_accuracy", "slots_f1"):
        done = fusionkit("results", runs, "--metric", metric, "--json")
        assert done.code == 0, done.err
        kinds = {(row["head"], row["joint_fusion"], row["metric"]) for row in done.json}
        heads = ("classifier+tagger", "classifier+crf")
        assert kinds == {(head, kind, metric) for head in heads for kind in ("shared", "each")}
    done = fusionkit("results", runs)
    assert done.code == 0
    assert "joint_fusion" in done.out
    assert fusionkit("info", runs).code == 0


def test_a_joint_run_answers_both_columns(fusionkit: Command, runs: Path) -> None:
    [shared] = [
        path.parent
        for path in runs.glob("*/run.json")
        if (spec := json.loads(path.read_text(encoding="utf-8"))["spec"])["head"] == "classifier+tagger"
        and spec["joint_fusion"] == "shared"
    ]
    done = fusionkit("predict", shared, "ein Zimmer in Oslo", "--json")
    assert done.code == 0, done.err
    [line] = map(json.loads, done.out.splitlines())
    heads = line["heads"]
    assert list(heads) == ["intent", "slots"]
    assert heads["intent"]["label"] in heads["intent"]["probabilities"]
    assert heads["slots"]["words"] == ["ein", "Zimmer", "in", "Oslo"]
    assert len(heads["slots"]["tags"]) == len(heads["slots"]["probabilities"]) == 4
    shown = fusionkit("predict", runs, "ein Zimmer in Oslo")
    assert shown.code == 0, shown.err
    assert shown.out.count("intent/") == shown.out.count("slots/") == 4


MISTAKES = {
    "--task joint --label intent": "a joint run learns two columns",
    "--task joint --label intent,slost": "unknown column 'slost'",
    "--task joint --head crf": "unknown head for joint 'crf'",
    "--task joint --joint-fusion two": "unknown --joint-fusion 'two'",
    "--task tagging --joint-fusion each": "the task tagging has one head",
    "--label intent,slots": "unknown column 'intent,slots'",
}


@pytest.mark.parametrize("given", MISTAKES)
def test_a_mistake_is_one_message(fusionkit: Command, store: Path, tmp_path: Path, given: str) -> None:
    done = fusionkit("fit", store, *given.split(), "--out", tmp_path / "runs")
    assert done.code == 2
    assert MISTAKES[given] in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "runs").exists()
