"""Heads scored on labelled data: over a store as ``fit`` scored them, over a source as over the store."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from safetensors.torch import load_file, save_file
from seqeval.metrics import classification_report
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

import fusionkit
from fusionkit.encode import encode
from fusionkit.encoder import Encoder
from fusionkit.errors import UsageError
from fusionkit.evaluation.answers import RunEvaluation, mistakes_frame
from fusionkit.evaluation.counts import NOTHING, REST, class_counts, confusions, most_frequent
from fusionkit.exported import export_best_of_each, export_run
from fusionkit.exported.other_runs import scores_of_others
from fusionkit.io.files import read_json
from fusionkit.runs.tables.paper_tables import csv_text
from fusionkit.sources import Columns, Examples, Source
from fusionkit.specs import EncodeSpec
from fusionkit.statistics.kept_answers import CLASS, NUMBER, SEVERAL, SPANS, TAGS
from fusionkit.store import Store

MakeStore = Callable[..., Store]
FitRun = Callable[..., Path]
CHOICES: list[dict[str, Any]] = [
    {"task": "tagging", "head": "crf", "fusions": ["attention"], "seeds": 2},
    {"task": "classification", "head": "classifier", "fusions": ["ladder:8"], "pool": "mean"},
    {"task": "regression", "label": "share", "fusions": ["linear"], "pool": "cls"},
    {"task": "joint", "fusions": ["attention"], "pool": "mean", "head": "classifier+crf"},
]


@pytest.fixture(scope="module")
def store(make_store: MakeStore) -> Store:
    return make_store("tokens")


@pytest.fixture(scope="module")
def runs(store: Store, fit_run: FitRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A regression, a classifier, two taggers and a joint run."""
    folder = tmp_path_factory.mktemp("runs")
    for choices in CHOICES:
        fit_run(store, folder, **choices)
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Iterable[dict[str, Any]]], Path]:
    """A file of JSON lines with these examples."""

    def written(rows: Iterable[dict[str, Any]]) -> Path:
        place = tmp_path / "validation.jsonl"
        place.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        return place

    return written


@pytest.fixture(scope="module")
def rows(source: Source) -> list[dict[str, Any]]:
    """The validation examples."""
    found: list[dict[str, Any]] = source.splits["validation"].head().to_pylist()
    return found


def test_scores_over_the_store_are_those_of_training_and_over_the_source_the_same(
    runs: Path, store: Store, rows: list[dict[str, Any]], write: Callable[..., Path]
) -> None:
    stored = fusionkit.evaluate(runs, data=store.path)
    live = fusionkit.evaluate(runs, data=write(rows), device="cpu")
    assert len(stored) == len(live) == 5
    for one, other in zip(stored, live, strict=True):
        assert one.run.digest == other.run.digest
        assert one.scores == pytest.approx(read_json(one.run.folder / "run.json")["scores"]["validation"], abs=1e-12)
        assert (one.data.split, len(one.data.frame)) == ("validation", 30)
        for name, head in one.heads.items():
            assert head.gold == other.heads[name].gold
            if head.kind == NUMBER:
                np.testing.assert_allclose(head.predicted, other.heads[name].predicted, atol=1e-5)
            else:
                assert head.predicted == other.heads[name].predicted


def test_a_run_of_several_tasks_is_scored_where_all_labels_are_or_on_the_columns_that_are_there(
    runs: Path, rows: list[dict[str, Any]], write: Callable[..., Path]
) -> None:
    def joint(given: Iterable[dict[str, Any]]) -> RunEvaluation:
        [found] = [each for each in fusionkit.evaluate(runs, data=write(given), device="cpu") if each.run.others]
        return found

    lacking = joint([{**row, "label": None if at < 4 else row["label"]} for at, row in enumerate(rows)])
    assert {len(head.gold) for head in lacking.heads.values()} == {26}
    assert "4 examples of 30 without a label: left out" in lacking.notes
    assert {"mean", "frame"} < {*lacking.scores}
    labelled = write({name: row[name] for name in ("tokens", "label")} for row in rows)
    first, *others = fusionkit.evaluate(runs, data=labelled, device="cpu")
    assert "no example has a label in 'share': share is not scored" in first.notes  # of a run that is left out
    [alone] = [each for each in (first, *others) if each.run.others]
    assert [*alone.heads] == ["intent"]
    assert "no example has a label in 'tags': tags is not scored" in alone.notes


def test_an_example_without_a_number_is_left_out_of_a_run_that_has_other_tasks_too(
    store: Store, fit_run: FitRun, rows: list[dict[str, Any]], write: Callable[..., Path], tmp_path: Path
) -> None:
    """As in training, though a regression alone needs a number in every example."""
    both = {"task": "topic=classification,share=regression", "label": "label,share", "fusions": ["linear"]}
    run = fit_run(store, tmp_path, **both, pool="mean")
    [found] = fusionkit.evaluate(
        run, data=write({**row, "share": None if at < 4 else row["share"]} for at, row in enumerate(rows)), device="cpu"
    )
    assert {len(head.gold) for head in found.heads.values()} == {26}
    assert "4 examples of 30 without a label: left out" in found.notes


def test_a_label_that_train_lacks_is_an_error_and_none_that_it_has_is_refused(
    runs: Path, rows: list[dict[str, Any]], write: Callable[..., Path]
) -> None:
    [run] = [each.run.folder for each in fusionkit.evaluate(runs, data=write(rows), device="cpu") if "ladder" in
             each.run.spec.fusion]  # fmt: skip
    renamed = [{"tokens": row["tokens"], "topic": "new" if at < 6 else row["label"]} for at, row in enumerate(rows)]
    [found] = fusionkit.evaluate(run, data=write(renamed), labels="topic", device="cpu")
    [head] = found.heads.values()
    assert "topic: 6 examples of 30 with a label that train lacks (new): counted as errors" in found.notes
    assert set(range(6)) <= set(head.wrong)
    [new] = [each for each in class_counts(CLASS, head.gold, head.predicted, head.run.labels) if not each.known]
    assert (new.name, new.told, new.predicted, new.f1) == ("new", 6, 0, 0.0)
    with pytest.raises(UsageError, match="learned none of the labels in column 'topic'"):
        fusionkit.evaluate(run, data=write([{**row, "topic": "9"} for row in renamed]), labels="topic", device="cpu")
    with pytest.raises(UsageError, match="has no labels of these heads"):
        fusionkit.evaluate(run, data=write([{"tokens": row["tokens"]} for row in rows]), device="cpu")
    with pytest.raises(
        UsageError, match=r"has no label of these heads\n.*\n  received: label empty in all of validation"
    ):
        fusionkit.evaluate(run, data=write([{"tokens": row["tokens"], "label": ""} for row in rows]), device="cpu")
    with pytest.raises(UsageError, match="unknown column --label 'topics'"):
        fusionkit.evaluate(run, data=write(renamed), labels="topics", device="cpu")


def test_wrong_answers_have_their_text_and_what_was_said(runs: Path, store: Store) -> None:
    found = fusionkit.evaluate(runs, data=store.path)
    frame = mistakes_frame(found)
    for each in found:
        for head in each.heads.values():
            mine = frame[(frame["run"] == head.run.digest) & (frame["column"] == head.column)]
            assert len(mine) == len(head.wrong)
            if head.kind == NUMBER:
                away = np.abs(mine["gold"].astype(float) - mine["predicted"].astype(float))
                assert len(mine) == 30
                assert (np.diff(away) <= 0).all()
            if head.kind == SPANS:
                assert mine["mistakes"].str.contains("missed|spurious|wrong").all()
    texts = {" ".join(words) for words in store["validation"].examples["tokens"]}
    assert set(frame["text"]) <= texts
    odd = mistakes_frame(found[:1]).assign(text="=cmd|' /C calc'!A0")
    assert "'=cmd" in csv_text(odd)


def test_scores_of_what_a_head_learned_from_are_said_to_be_optimistic(runs: Path, store: Store) -> None:
    learned, held = (fusionkit.evaluate(runs, data=store.path, split=split) for split in ("train", "validation"))
    assert all("is what the head learned from: these scores are optimistic" in each.notes[0] for each in learned)
    assert not any("optimistic" in note for each in held for note in each.notes)


def test_a_store_that_a_run_cannot_read_is_refused(runs: Path, make_store: MakeStore) -> None:
    with pytest.raises(UsageError, match="cannot read the states of") as caught:
        fusionkit.evaluate(runs, data=make_store("words").path)
    assert caught.value.received == "rows words"
    with pytest.raises(UsageError, match="unknown split of"):
        fusionkit.evaluate(runs, data=make_store("tokens").path, split="test")
    with pytest.raises(UsageError, match="--text is for a source"):
        fusionkit.evaluate(runs, data=make_store("tokens").path, inputs={"text": "text"})


GOLD = [["B-x", "I-x", "O", "B-y"], ["O", "B-z", "B-z"], ["B-x", "O"]]
SAID = [["B-x", "I-x", "B-y", "I-y"], ["B-y", "B-z", "I-z"], ["B-y", "O"]]


def test_counts_of_entities_are_seqevals() -> None:
    report = classification_report(GOLD, SAID, output_dict=True, zero_division=0)
    found = {each.name: each for each in class_counts(SPANS, GOLD, SAID, ["O", "B-x", "I-x", "B-y"])}
    assert {*found} == {"x", "y", "z"}
    assert [name for name, each in found.items() if not each.known] == ["z"]
    for name, each in found.items():
        told = (each.precision, each.recall, each.f1, each.told)
        wanted = tuple(report[name][key] for key in ("precision", "recall", "f1-score", "support"))
        assert told == pytest.approx(wanted)
    pairs = confusions(SPANS, GOLD, SAID)
    assert pairs == {("x", "x"): 1, ("y", "y"): 1, ("z", "z"): 1, ("z", NOTHING): 1, (NOTHING, "y"): 1, ("x", "y"): 1}


@pytest.mark.parametrize("kind", [CLASS, TAGS])
def test_counts_of_classes_are_scikit_learns(kind: str) -> None:
    rng = np.random.default_rng(0)
    gold, said = (rng.choice(list("abcd"), (50, 3)).tolist() for _ in range(2))
    flat = [[name for row in side for name in row] for side in (gold, said)]
    told, answered = (gold, said) if kind == TAGS else flat
    names = list("abcde")
    found = {each.name: each for each in class_counts(kind, told, answered, names)}
    wanted = precision_recall_fscore_support(*flat, labels=names, zero_division=0)
    for at, name in enumerate(names):
        each = found[name]
        assert (each.precision, each.recall, each.f1, each.told) == pytest.approx([column[at] for column in wanted])
    pairs = confusions(kind, told, answered)
    assert [[pairs[a, b] for b in names] for a in names] == confusion_matrix(*flat, labels=names).tolist()


def test_labels_of_several_an_example_are_counted_one_by_one_and_have_no_confusions() -> None:
    gold, said = [["a", "b"], [], ["c"]], [["b", "a"], ["a"], []]
    found = {
        each.name: (each.told, each.predicted, each.right) for each in class_counts(SEVERAL, gold, said, ["a", "b"])
    }
    assert found == {"a": (1, 2, 1), "b": (1, 1, 1), "c": (1, 0, 0)}
    assert not confusions(SEVERAL, gold, said)


def test_the_classes_that_do_not_fit_a_table_are_one() -> None:
    pairs = confusions(CLASS, list("aaabbcd"), list("aabbacb"))
    order, counts = most_frequent(pairs, 3)
    assert order == ["a", "b", REST]
    assert sum(counts.values()) == 7
    assert counts[REST, REST] == 1
    assert most_frequent(pairs, 4) == (["a", "b", "c", "d"], pairs)
    # What has no partner is no class: it keeps a row and a column.
    pairs["a", NOTHING], pairs[NOTHING, "d"] = 3, 2
    order, counts = most_frequent(pairs, 3)
    assert order == ["a", NOTHING, REST]
    assert (counts["a", NOTHING], counts[NOTHING, REST], counts["a", "a"], counts["a", REST]) == (3, 2, 2, 1)
    assert sum(counts.values()) == 12


def test_the_best_head_of_each_task_is_exported_with_its_spread_over_seeds(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds 5 runs") as caught:
        export_run(runs, tmp_path / "one")
    told = caught.value.what.splitlines()
    assert len(told) == 7
    assert all(path.parent.name in caught.value.what for path in runs.glob("*/run.json"))
    (tmp_path / "taken" / "tags").mkdir(parents=True)
    (tmp_path / "taken" / "tags" / "thesis.txt").touch()
    with pytest.raises(UsageError, match="tags holds something else"):
        export_best_of_each(runs, tmp_path / "taken")
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["tags"]
    heads = export_best_of_each(runs, tmp_path / "heads")
    assert sorted(heads) == ["label", "label-tags", "share", "tags"]
    records = [read_json(path) for path in runs.glob("*/run.json")]
    taggers = [record for record in records if record["spec"]["task"] == "tagging"]
    scores = pd.Series([record["scores"]["validation"]["f1"] for record in taggers])
    spread = heads["tags"].config["over_seeds"]
    assert (spread["runs"], len(taggers)) == (2, 2)
    assert spread["scores"]["validation"]["f1"]["mean"] == pytest.approx(scores.mean())
    assert spread["scores"]["validation"]["f1"]["std"] == pytest.approx(scores.std())
    best = max(taggers, key=lambda record: float(record["validation_score"]))
    assert heads["tags"].config["scores"] == best["scores"]
    card = (tmp_path / "heads" / "tags" / "README.md").read_text()
    assert "| validation, over seeds |" in card
    joint = (tmp_path / "heads" / "label-tags" / "README.md").read_text()
    assert "for the tasks label (classification), tags (tagging)" in joint
    assert joint.count("### ") == 3
    assert "over seeds" not in joint
    assert taggers[0]["data_identity"] in card


def test_a_spread_is_of_the_scores_that_all_seeds_have(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    first, second = (
        path for path in sorted((tmp_path / "runs").glob("*/run.json")) if read_json(path)["spec"]["task"] == "tagging"
    )
    older = read_json(second)
    del older["scores"]["validation"]["f1"]
    second.write_text(json.dumps(older))
    spread = scores_of_others(first.parent, read_json(first))["over_seeds"]
    assert spread is not None
    assert "f1" not in spread["scores"]["validation"]
    assert len(spread["scores"]["validation"]) == len(older["scores"]["validation"]) > 0


def test_records_beside_a_run_without_a_spec_are_left_out(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    [run] = [path for path in (tmp_path / "runs").glob("*/run.json") if "ladder" in read_json(path)["spec"]["fusion"]]
    for number, odd in enumerate([{"status": "finished"}, {"status": "finished", "spec": None, "scores": {}}]):
        (folder := tmp_path / "runs" / f"{number:016x}").mkdir()
        (folder / "run.json").write_text(json.dumps(odd))
    assert scores_of_others(run.parent, read_json(run)) == {"over_seeds": None, "floors": None}


def test_copies_of_a_run_are_heads_of_their_own(
    runs: Path, rows: list[dict[str, Any]], write: Callable[..., Path], tmp_path: Path
) -> None:
    """Of one digest; the second copy has other weights, so that its answers show which one gave them."""
    [run] = [path.parent for path in runs.glob("*/run.json") if "ladder" in read_json(path)["spec"]["fusion"]]
    folders = [Path(shutil.copytree(run, tmp_path / name / run.name)).resolve() for name in ("one", "two")]
    weights = folders[1] / "weights.safetensors"
    save_file({name: -tensor for name, tensor in load_file(weights).items()}, weights)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    (folders[1] / "run.json").write_text(json.dumps({**read_json(run / "run.json"), "weights_sha256": digest}))

    def evaluated(*places: Path) -> list[list[Any]]:
        found = fusionkit.evaluate(*places, data=write(rows), device="cpu")
        assert [each.run.folder for each in found] == list(places)
        return [head.predicted for each in found for head in each.heads.values()]

    alone = [answers for folder in folders for answers in evaluated(folder)]
    assert alone[0] != alone[1]
    assert evaluated(*folders) == alone
    names = list(fusionkit.load(*folders, device="cpu").runs)
    assert [name.endswith(str(folder)) for name, folder in zip(names, folders, strict=True)] == [True, True]


def test_a_column_and_a_number_of_examples_that_are_named_are_what_is_scored(
    runs: Path, rows: list[dict[str, Any]], write: Callable[..., Path]
) -> None:
    """The column of training is there too, with the words of other examples."""
    [run] = [path.parent for path in runs.glob("*/run.json") if "ladder" in read_json(path)["spec"]["fusion"]]
    plain = [{"tokens": row["tokens"], "label": row["label"]} for row in rows]
    turned = [{**row, "other": row["tokens"], "tokens": rows[at - 1]["tokens"]} for at, row in enumerate(plain)]

    def likely(given: Iterable[dict[str, Any]], **how: Any) -> tuple[list[Any], list[Any]]:
        [found] = fusionkit.evaluate(run, data=write(given), device="cpu", **how)
        [head] = found.heads.values()
        assert head.probabilities is not None
        return head.gold, head.probabilities

    gold, wanted = likely(plain)
    few, found = likely(turned, inputs={"tokens": "other"}, limit=7)
    assert few == gold[:7]
    assert found == pytest.approx(wanted[:7], abs=1e-5)
    assert likely(turned)[1] != pytest.approx(wanted, abs=1e-3)


def test_labels_in_a_parquet_file_of_pandas_are_read_as_they_stand(
    runs: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Neither the column that was the index of its frame nor an NA is lost."""
    [run] = [path.parent for path in runs.glob("*/run.json") if "ladder" in read_json(path)["spec"]["fusion"]]
    lacking = [{**row, "label": None if at == 0 else row["label"]} for at, row in enumerate(rows)]
    pd.DataFrame(lacking).convert_dtypes().set_index("label").to_parquet(tmp_path / "validation.parquet")
    [found] = fusionkit.evaluate(run, data=tmp_path / "validation.parquet", device="cpu")
    [head] = found.heads.values()
    assert head.gold == [row["label"] for row in rows[1:]]
    assert "1 example of 30 without a label: left out" in found.notes


@pytest.mark.parametrize("missing", [None, "-1"])
@pytest.mark.parametrize("stored", [False, True])
def test_the_split_is_the_last_one_with_labels_unless_one_is_named(
    runs: Path, source: Source, encoder: Encoder, rows: list[dict[str, Any]], tmp_path: Path, stored: bool,
    missing: str | None,
) -> None:  # fmt: skip
    [run] = [path.parent for path in runs.glob("*/run.json") if "ladder" in read_json(path)["spec"]["fusion"]]
    data = tmp_path / "data"
    if stored:
        labelled = source.splits["validation"].head()
        hidden = labelled.set_column(
            labelled.column_names.index("label"), "label", pa.array([missing] * 30, pa.string())
        )
        both = Source("letters", {**source.splits, "test": Examples.of(hidden)})
        spec = EncodeSpec(rows="tokens", dtype="float32", max_length=24)
        encode(both, Columns(tokens="tokens", labels=("label",)), data, spec, encoder)
    else:
        data.mkdir()
        for split in ("validation", "test"):
            lines = [{"tokens": row["tokens"], "label": row["label"] if split != "test" else missing} for row in rows]
            (data / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    [found] = fusionkit.evaluate(run, data=data, device="cpu")
    assert found.data.split == "validation"
    assert f"test of {data} has no labels that these heads know: not used" in found.notes
    [named] = fusionkit.evaluate(run, data=data, split="validation", device="cpu")
    assert found.scores == named.scores
    assert not any("not used" in note for note in named.notes)
    with pytest.raises(UsageError, match="label empty in all of test" if missing is None else "has learned none"):
        fusionkit.evaluate(run, data=data, split="test", device="cpu")


@pytest.mark.parametrize(("column", "kind"), [("text", "string"), ("share", "double")])
def test_a_tagger_is_not_scored_on_a_column_without_lists(
    runs: Path, store: Store, rows: list[dict[str, Any]], write: Callable[..., Path], column: str, kind: str
) -> None:
    run, _ = (path.parent for path in runs.glob("*/run.json") if read_json(path)["spec"]["task"] == "tagging")
    with pytest.raises(UsageError, match=f"column '{column}' of validation holds no tags") as caught:
        fusionkit.evaluate(run, data=write(rows), labels=column, device="cpu")
    assert caught.value.received == kind
    with pytest.raises(UsageError, match=f"validation, example 0: '{column}' holds no tags"):
        fusionkit.evaluate(run, data=store.path, labels=column)
    with pytest.raises(UsageError, match="tags empty in all of validation"):
        fusionkit.evaluate(run, data=write({**row, "tags": None} for row in rows), device="cpu")


def test_no_data_is_refused(runs: Path) -> None:
    with pytest.raises(UsageError, match="no data is given"):
        fusionkit.evaluate(runs, data=[])
