"""Transfer on the command line: the bundled corpus's languages, from shares of stores to predictions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import fusionkit as package
from fusionkit.cli.console import given_share
from fusionkit.errors import UsageError
from fusionkit.io.files import read_json
from fusionkit.store import open_store

Command = Callable[..., Any]
FIT = ("--label", "intent", "--fusion", "linear", "--epochs", 2, "--floor", "none")


@pytest.fixture(scope="module")
def french(fusionkit: Command, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The French corpus as the German one is stored, but for its dtype and its layers: 0, 3 and 6 are shared."""
    store: Path = tmp_path_factory.mktemp("french") / "fr.store"
    done = fusionkit("encode", corpus.parent / "fr", "--out", store, "--layers", "0,3,5,6", "--dtype", "float32")
    assert done.code == 0, done.err
    return store


@pytest.fixture(scope="module")
def mixed(fusionkit: Command, store: Path, french: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Runs over German and a tenth of French, two seeds, and what ``fit --json`` printed."""
    runs = tmp_path_factory.mktemp("mixed") / "runs"
    done = fusionkit("fit", store, f"{french}:10%", "--out", runs, *FIT, "--seeds", 2, "--json")
    assert done.code == 0, done.err
    return runs, done


def test_a_share_of_a_store_is_fitted_with_another_store(mixed: tuple[Path, Any]) -> None:
    runs, done = mixed
    for record in done.json:
        assert (record["data"], record["evaluated"], record["init_data"]) == ("de + fr:10%", "fr", None)
        assert record["score"] * 30 == pytest.approx(round(record["score"] * 30), abs=1e-9)  # of 30 French examples
        assert record["trained_parameters"] == record["fusion_parameters"] + record["head_parameters"]
    assert len(list(runs.glob("*/run.json"))) == 2
    assert "validation of fr chooses the epoch, test of fr is scored (the last store named" in done.err
    assert "train: 80 examples of de, 8 examples of fr" in done.err
    assert "layers 0, 3, 6: those that every store has" in done.err


def test_a_second_fit_trains_nothing(fusionkit: Command, store: Path, french: Path, mixed: tuple[Path, Any]) -> None:
    runs, first = mixed
    again = fusionkit("fit", store, f"{french}:10.0%", "--out", runs, *FIT, "--seeds", 2, "--json")
    assert (again.code, again.out) == (0, first.out)
    assert again.err.splitlines()[1:] == ["2 of 2 runs there already"]


def test_every_store_to_evaluate_on_has_a_row(fusionkit: Command, store: Path, french: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    judges = ["--evaluate-on", store, "--evaluate-on", french]
    done = fusionkit("fit", store, "--out", runs, *FIT, *judges)
    assert done.code == 0, done.err
    first = [line.split()[0] for line in done.out.splitlines()]
    at = first.index("evaluated")  # what all rows share stands above, in as many lines as the table is wide
    assert first[at : at + 3] == ["evaluated", "de", "fr"]
    rows = fusionkit("results", runs, "--by", "evaluated", "--by", "fusion", "--json").json
    assert [(row["evaluated"], row["runs"]) for row in rows] == [("de", 1), ("fr", 1)]
    other = fusionkit("results", runs, "--by", "evaluated", "--metric", "macro_f1", "--json").json
    assert {row["metric"] for row in other} == {"macro_f1"}
    assert [row["mean"] for row in other] != [row["mean"] for row in rows]
    assert fusionkit("info", runs, "--json").json["runs"] == 1


def test_a_frozen_fusion_is_shown_beside_ones_own(
    fusionkit: Command, french: Path, mixed: tuple[Path, Any], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    layers = ("--fusion-layers", "0,3,6", "--seeds", 2)
    assert fusionkit("fit", french, "--out", runs, *FIT, *layers).code == 0
    begin = ("--init-from", mixed[0], "--init-part", "fusion", "--freeze", "fusion")
    done = fusionkit("fit", french, "--out", runs, *FIT, *layers, *begin, "--json")
    assert done.code == 0, done.err
    assert {record["trained_parameters"] for record in done.json} == {done.json[0]["head_parameters"]}
    assert len({record["init_from"] for record in done.json}) == 2  # each seed has its own
    table = fusionkit("results", runs, "--json").json
    assert [(row["init_data"], row["freeze"], row["runs"]) for row in table] == [
        (None, None, 2), ("de + fr:10%", "fusion", 2)
    ]  # fmt: skip
    assert table[0]["parameters"] - table[1]["parameters"] == 3 + 1
    assert "init_from" not in table[0]


def test_a_head_of_two_languages_predicts(fusionkit: Command, mixed: tuple[Path, Any], tmp_path: Path) -> None:
    lines = tmp_path / "in.jsonl"
    lines.write_text('{"tokens": ["Wo", "ist", "der", "Bahnhof", "?"]}\n{"tokens": ["Où", "est", "la", "gare", "?"]}\n')
    done = fusionkit("predict", sorted(mixed[0].glob("*/run.json"))[0].parent, "--input", lines, "--json")
    assert done.code == 0, done.err
    assert done.out.count('"probabilities"') == 2


def test_a_store_whose_name_ends_like_a_share_is_a_store(fusionkit: Command, store: Path, tmp_path: Path) -> None:
    odd = tmp_path / "de.store:5%"
    shutil.copytree(store, odd)
    for text, examples in ((odd, 80), (f"{odd}:10%", 8), (f"{odd}:3", 3)):
        done = fusionkit("fit", text, "--out", tmp_path / "runs", *FIT, "--json")
        assert done.code == 0, done.err
        assert examples == 80 or f"train: {examples} examples of de" in done.err
    shutil.copytree(store, tmp_path / "de.store")
    done = fusionkit("fit", odd, "--out", tmp_path / "runs", *FIT)
    assert "1 of 1 run there already" in done.err  # the whole store, not a share of the other


@pytest.mark.parametrize(
    ("share", "what"),
    [
        (":0%", "no share of a store: 0%"),
        (":101%", "no share of a store: 101%"),
        (":half", "no share of a store: half"),
        (":81", "fewer training examples than the share of it"),
    ],
)
def test_a_wrong_share_is_one_message(
    fusionkit: Command, store: Path, french: Path, tmp_path: Path, share: str, what: str
) -> None:
    done = fusionkit("fit", french, f"{store}{share}", "--out", tmp_path / "runs", *FIT)
    assert (done.code, done.out) == (2, "")
    assert what in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--init-from", "nowhere"), "nowhere holds no finished run"),
        (("--init-part", "head"), "--init-part says what to take of a run"),
        (("--evaluate-on", "nowhere"), "nowhere is no store"),
        (("--freeze", "layers"), "unknown --freeze 'layers'"),
    ],
)
def test_a_wrong_option_is_one_message(
    fusionkit: Command, store: Path, tmp_path: Path, options: tuple[str, str], what: str
) -> None:
    done = fusionkit("fit", store, "--out", tmp_path / "runs", *FIT, *options)
    assert (done.code, done.out) == (2, "")
    assert what in done.err


def test_an_address_may_have_a_share_too(store: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(store), "/bucket/de.store", recursive=True)
    try:
        for part, text in ((None, ""), ("5%", ":5%"), ("7", ":7")):
            share = given_share(f"memory://bucket/de.store{text}")
            assert (str(share.store.path), share.part) == ("memory://bucket/de.store", part)
            assert share.store.digest == open_store(store).digest
        with pytest.raises(UsageError, match=r"memory://bucket/en\.store is no store"):
            given_share("memory://bucket/en.store:5%")
    finally:
        memory.rm("/bucket", recursive=True)


def test_a_share_of_no_store_names_the_store(fusionkit: Command, tmp_path: Path) -> None:
    done = fusionkit("fit", tmp_path / "gone.store:5%", "--out", tmp_path / "runs")
    assert done.code == 2
    assert f"{tmp_path / 'gone.store'} is no store" in done.err


def test_stores_are_needed(fusionkit: Command, tmp_path: Path) -> None:
    done = fusionkit("fit", "--out", tmp_path / "runs")
    assert done.code == 2
    assert "fit needs STORE" in done.err


def test_over_the_store_that_judged_them_runs_score_as_they_were_judged(mixed: tuple[Path, Any], french: Path) -> None:
    """Their layers are looked up anew there: 0, 3 and 6 of 0, 3, 5 and 6."""
    for split in ("validation", "test"):
        found = package.evaluate(mixed[0], data=french, split=split, device="cpu")
        assert len(found) == 2
        for each in found:
            recorded = read_json(each.run.folder / "run.json")["scores"][split]
            assert each.scores == pytest.approx(recorded, abs=1e-12)
