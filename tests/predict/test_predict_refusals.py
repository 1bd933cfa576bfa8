"""What cannot be predicted with is refused, each with its name and the remedy; and how runs are named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fusionkit
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.errors import EncoderError, StoreError, UsageError
from fusionkit.exported import find_heads
from fusionkit.runs.find_run import EXPORTED, find_run
from fusionkit.store import Store

MakeStore = Callable[..., Store]
FitRun = Callable[..., Path]


@pytest.fixture(scope="module")
def runs(make_store: MakeStore, fit_run: FitRun) -> Path:
    """Two finished runs over words."""
    return fit_run(make_store("words"), task="tagging", fusions=["linear", "last"])


@pytest.fixture
def mine(runs: Path, tmp_path: Path) -> Path:
    """A copy of one run, to be changed."""
    first = sorted(folder for folder in runs.iterdir() if folder.is_dir())[0]
    shutil.copytree(first, tmp_path / "runs" / first.name)
    return tmp_path / "runs" / first.name


def change(run: Path, **fields: Any) -> None:
    record = json.loads((run / "run.json").read_text())
    record = {k: v for k, v in {**record, **fields}.items() if v is not None}
    (run / "run.json").write_text(json.dumps(record))


def test_a_run_is_named_by_its_folder_its_beginning_or_the_folder_of_all(runs: Path) -> None:
    folders = sorted(folder for folder in runs.iterdir() if folder.is_dir())
    assert {run.folder for run in fusionkit.load(runs).runs.values()} == {folder.resolve() for folder in folders}
    for place in (folders[0], str(folders[0])[:-8]):
        [run] = fusionkit.load(place).runs.values()
        assert run.folder == folders[0].resolve()
    assert len(fusionkit.load(folders[0], runs, folders[1]).runs) == 2  # each once


def test_a_beginning_that_fits_several_runs_is_refused(mine: Path) -> None:
    shutil.copytree(mine, mine.with_name(mine.name[:8] + "0" * 8))
    with pytest.raises(UsageError, match="fits 2 runs"):
        fusionkit.load(str(mine)[:-8])


@pytest.mark.parametrize("spec", ["a text", 3, []])
def test_a_record_whose_spec_is_no_spec_is_damaged(mine: Path, spec: Any) -> None:
    change(mine, spec=spec)
    with pytest.raises(StoreError, match=r"run\.json is damaged"):
        fusionkit.load(mine)
    with pytest.raises(UsageError, match="holds no finished run"):
        fusionkit.load(mine.parent)


@pytest.mark.parametrize("place", ["", "no-such-folder", "no-such-folder/abcd1234"])
def test_a_place_without_runs_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(UsageError, match="holds no finished run"):
        fusionkit.load(tmp_path / place)


def test_an_exported_head_with_a_record_beside_it_is_no_run(tmp_path: Path) -> None:
    folder = tmp_path / "0123456789abcdef"
    folder.mkdir()
    (folder / "run.json").write_text('{"status": "finished"}')
    places: list[str | Path] = [folder, tmp_path, str(folder)[:-8]]
    for place in places:
        assert find_run(place) == [folder]
        assert find_heads(place) == {folder: False}
    for file in EXPORTED:
        (folder / file).touch()
        for place in places:
            with pytest.raises(UsageError, match="is an exported head"):
                find_run(place)
            assert find_heads(place) == {folder: True}
        (folder / file).unlink()


def test_a_failed_run_is_refused_by_name_and_left_out_of_its_folder(mine: Path, runs: Path) -> None:
    change(mine, status="failed", error="no longer finite")
    with pytest.raises(UsageError, match="failed"):
        fusionkit.load(mine)
    with pytest.raises(UsageError, match="holds no finished run"):
        fusionkit.load(mine.parent)


@pytest.mark.parametrize("why", ["mlm", "taken"])
def test_a_run_that_cannot_answer_is_left_out_of_its_folder(mine: Path, runs: Path, why: str) -> None:
    other = sorted(folder for folder in runs.iterdir() if folder.is_dir())[1]
    shutil.copytree(other, mine.parent / other.name)
    spec = json.loads((mine / "run.json").read_text())["spec"]
    change(mine, **({"spec": {**spec, "task": "mlm"}} if why == "mlm" else {"taken_from": "a.jsonl"}))
    assert find_heads(mine.parent) == {mine.parent / other.name: False}
    with pytest.raises(UsageError, match="masked sub-tokens" if why == "mlm" else "has no weights"):
        fusionkit.load(mine)


@pytest.mark.parametrize("field", ["encoding", "default", "hidden", "labels", "weights_sha256"])
def test_a_run_that_an_earlier_version_kept_says_to_fit_again(mine: Path, field: str) -> None:
    change(mine, **{field: None})
    with pytest.raises(UsageError, match=f"no {field}") as caught:
        fusionkit.load(mine)
    assert "fusionkit fit" in str(caught.value.remedy)


def test_damaged_weights_are_refused(mine: Path) -> None:
    weights = mine / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1  # one bit of one number
    weights.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"):
        fusionkit.load(mine)
    weights.unlink()
    with pytest.raises(StoreError, match="is damaged"):
        fusionkit.load(mine)


def test_weights_that_do_not_fit_the_record_are_refused(mine: Path) -> None:
    change(mine, labels=["O", "B-x"])
    with pytest.raises(StoreError, match="is damaged"):
        fusionkit.load(mine)


def test_another_encoder_at_the_same_place_is_refused(runs: Path, save_bert: Callable[[int], Path]) -> None:
    other = save_bert(1)
    with pytest.raises(EncoderError, match="is not the recorded one") as caught:
        fusionkit.load(runs, encoder=str(other))
    assert "its weights differ" in str(caught.value)


def test_an_encoder_that_has_moved_is_taken_from_its_new_place(runs: Path, bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "moved")
    given = [["abc", "de"]]
    assert fusionkit.load(runs, encoder=str(tmp_path / "moved")).predict(given) == fusionkit.load(runs).predict(given)


def test_runs_of_two_encoders_or_inputs_are_refused_with_the_difference(
    runs: Path, make_store: MakeStore, fit_run: FitRun, save_bert: Callable[[int], Path]
) -> None:
    other: Encoder = load_encoder(str(save_bert(2)), device="cpu", words=True)
    foreign = fit_run(make_store("words", encoder=other), task="tagging", fusions=["last"])
    with pytest.raises(UsageError, match="cannot share one pass") as caught:
        fusionkit.load(runs, foreign)
    assert other.identity["weights"][:16] in str(caught.value.received)
    texts = fit_run(make_store("mean", text="text"), label="label", fusions=["last"])
    with pytest.raises(UsageError, match="input words"):
        fusionkit.load(runs, texts)


@pytest.mark.parametrize(
    ("given", "received"),
    [
        ((["a text"],), "texts"),
        ((["a text", ["and", "words"]],), "texts and lists of words"),
        ((["a text"], ["another"]), "two texts"),
        (("one text",), "one text"),
    ],
)
def test_other_input_than_in_training_is_refused(runs: Path, given: tuple[Any, ...], received: str) -> None:
    with pytest.raises(UsageError, match="other input") as caught:
        fusionkit.load(runs).predict(*given)
    assert received in str(caught.value.received)


def test_pairs_must_be_as_many_as_texts(make_store: MakeStore, fit_run: FitRun) -> None:
    run = fit_run(make_store("mean", text="text", pair="pair"), label="label", fusions=["linear"])
    with pytest.raises(UsageError, match="the numbers of texts and of second texts differ"):
        fusionkit.load(run).predict(["a", "b"], ["c"])
