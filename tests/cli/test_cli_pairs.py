"""``--pair-as`` from the command line: what is said, shown, estimated and predicted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
TEXTS = ["rain in Oslo", "snow over Bergen", "soup", "rain"]
ROWS = [
    {"sentence1": TEXTS[k % 4], "sentence2": TEXTS[(k * k) % 3], "label": "same" if k % 4 == k * k % 3 else "other"}
    for k in range(12)
]


@pytest.fixture(scope="module")
def source(write_source: Callable[..., Path]) -> Path:
    return write_source(train=ROWS, validation=ROWS[:4])


@pytest.fixture(scope="module")
def store(fusionkit: Command, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the bundled encoder takes pairs: as two."""
    out = tmp_path_factory.mktemp("pairs") / "pairs.store"
    done = fusionkit("encode", source, "--out", out, "--layers", "0,6", "--rows", "mean")
    assert done.code == 0
    said = "pairs: as two ('minilm' was trained to encode single sentences; --pair-as chooses)"
    assert said in done.err.splitlines()
    return out


def test_info_tells_the_sequences(fusionkit: Command, store: Path) -> None:
    summary = fusionkit("info", store, "--json").json
    assert (summary["pair_as"], summary["identity"]["pair_as"]) == ("two", "two")
    assert {name: (split["examples"], split["sequences"]) for name, split in summary["splits"].items()} == {
        "train": (12, 4), "validation": (4, 4),
    }  # fmt: skip
    lines = fusionkit("info", store).out.splitlines()
    assert "pairs     each as two" in lines
    [train] = [line.split() for line in lines if line.startswith("train")]
    [header] = [line.split() for line in lines if line.startswith("split")]
    assert header[:4] == ["split", "examples", "sequences", "rows"]
    assert train[:4] == ["train", "12", "4", "4"]


def test_a_choice_is_followed_without_a_word(fusionkit: Command, source: Path, tmp_path: Path) -> None:
    done = fusionkit("encode", source, "--out", tmp_path / "s", "--layers", "6", "--pair-as", "one", "--json")
    assert "pairs: as" not in done.err
    assert done.json["pair_as"] == "one"
    assert "sequences" not in done.json["splits"]["train"]
    assert "each as one" in fusionkit("info", tmp_path / "s").out
    again = fusionkit("encode", source, "--out", tmp_path / "s", "--layers", "6")
    assert again.code == 2
    assert ["pair_as", "one", "two"] in [line.split() for line in again.err.splitlines()]


def test_an_estimate_shows_the_sequences(fusionkit: Command, source: Path, store: Path) -> None:
    done = fusionkit("estimate", source, "--layers", "0,6", "--rows", "mean")
    assert "pairs: as two" in done.err
    assert done.out.splitlines()[0].split() == ["split", "examples", "sequences", "rows", "tokens"]
    assert done.out.splitlines()[1].split()[:4] == ["train", "12", "4", "4"]


def test_heads_over_pairs_predict_lines_with_a_tab(fusionkit: Command, store: Path, tmp_path: Path) -> None:
    fitted = fusionkit(
        "fit", store, "--floor", "none", "--fusion", "linear", "--epochs", 2, "--out", tmp_path / "runs", "--json"
    )
    assert fitted.code == 0
    assert [run["sides"] for run in fitted.json] == [2]
    lines = [f"{row['sentence1']}\t{row['sentence2']}" for row in ROWS[:3]]
    done = fusionkit("predict", tmp_path / "runs", *lines, "--json")
    assert done.code == 0
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [(line["text"], line["pair"]) for line in found] == [
        (row["sentence1"], row["sentence2"]) for row in ROWS[:3]
    ]
    assert all(line["heads"]["label"]["label"] in ("same", "other") for line in found)


MISTAKES: dict[str, tuple[str, str]] = {
    "encode {plain} --out {out} --pair-as two": (
        "--pair-as two needs pairs of texts",
        "name the second text with --pair",
    ),
    "encode {plain} --out {out} --pair-as one": ("--pair-as one needs pairs of texts", "leave --pair-as out"),
    "estimate {plain} --pair-as two": ("--pair-as two needs pairs of texts", "name the second text with --pair"),
    "encode {pairs} --out {out} --pair-as three": ("unknown --pair-as 'three'", "expected: one of one, two"),
    "encode {words} --out {out} --pair other": (
        "both sides of a pair must be columns of texts",
        "name the first text with --text",
    ),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_wrong_use_is_one_message_and_leaves_nothing(
    fusionkit: Command, write_source: Callable[..., Path], source: Path, tmp_path: Path, line: str
) -> None:
    places = {
        "plain": write_source(train=[{"text": "a", "label": 1}, {"text": "b", "label": 2}]),
        "words": write_source(train=[{"tokens": ["a", "b"], "other": "c", "label": 1}]),
        "pairs": source,
        "out": tmp_path / "out",
    }
    done = fusionkit(*(part.format(**places) for part in line.split()))
    says, remedy = MISTAKES[line]
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert remedy in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []
