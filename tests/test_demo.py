"""The demonstration, over a few sentences of the corpus and for one epoch."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from fusionkit.bundled import travel_desk
from fusionkit.cli import demo
from fusionkit.cli.main import main
from fusionkit.fusions import FUSIONS
from fusionkit.tasks import TASKS


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``fusionkit demo ARGS`` over twelve sentences a split; gives standard output."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for path in travel_desk("en").glob("*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines()[:12]
        (corpus / path.name).write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr(demo, "travel_desk", lambda language: corpus)
    monkeypatch.setattr(demo, "TASKS", {name: {**choices, "epochs": (1,)} for name, choices in demo.TASKS.items()})
    monkeypatch.setattr(demo, "SEEDS", 2)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")

    def call(*args: object) -> str:
        monkeypatch.setattr(sys, "argv", ["fusionkit", "demo", *map(str, args)])
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        return out.getvalue()

    return call


def test_the_demonstration_compares_its_fusions_on_both_tasks(run: Callable[..., str], tmp_path: Path) -> None:
    found = json.loads(run("--keep", tmp_path / "kept", "--json"), parse_constant=pytest.fail)  # NaN is no JSON
    assert found["encoder_parameters"] == 22_713_216
    assert found["encode_seconds"] > 0
    seen = [(row["label"], row["fusion"], row["data_seed"]) for row in found["runs"]]
    assert seen == [(label, f, s) for label in ("slots", "intent") for f in demo.FUSIONS for s in range(2)]
    assert {row["label"]: (row["head"], row["pool"], row["metric"]) for row in found["runs"]} == {
        "intent": ("classifier", "mean", "accuracy"), "slots": ("crf", None, "f1")
    }  # fmt: skip
    text = run("--keep", tmp_path / "kept")  # all there already
    lines = [line.split() for line in text.splitlines()]
    assert [line[:2] for line in lines if line and line[0] in ("intent", "slots")] == [
        [label, fusion] for label in ("slots", "intent") for fusion in demo.FUSIONS
    ]
    assert "the encoder has 22,713,216 parameters" in text
    assert "16 heads trained over it" in text
    assert f"kept in {tmp_path / 'kept'}" in text
    assert text.count("baseline") == 2  # of each task the last layer alone
    page = tmp_path / "kept" / "travel-desk.html"
    assert text.splitlines()[-1] == f"report: {page}"
    assert "travel-desk" in page.read_text(encoding="utf-8")
    assert (tmp_path / "kept" / "travel-desk.store" / "manifest.json").is_file()


def test_the_demonstration_names_what_exists() -> None:
    assert set(demo.FUSIONS) <= set(FUSIONS)
    row = json.loads((travel_desk("en") / "train.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert set(demo.TASKS) == {"intent", "slots"} <= set(row)
    assert demo.TASKS["intent"]["task"] == "classification"
    assert demo.TASKS["slots"]["head"] in TASKS["tagging"].heads
