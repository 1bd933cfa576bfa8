"""Floors: the majority and the n-grams against their definitions, and their place in the table of runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score

from fusionkit.dataset.mixture import mix_of
from fusionkit.dataset.share import Share
from fusionkit.errors import UsageError
from fusionkit.exported import export_run
from fusionkit.fit import RunsFolder, fit
from fusionkit.fit.model.checkpoint import open_runs
from fusionkit.fit.sweep.blocks import Sweep, expand_blocks
from fusionkit.fit.sweep.checks import read_floors
from fusionkit.fit.sweep.floors import floors_of
from fusionkit.fit.train.floors import STRENGTHS
from fusionkit.report.report_data import read_report_data
from fusionkit.report.tables import compared, groups_table, matrix_tables
from fusionkit.runs.choice import best_of_each_task, best_run, listed_runs
from fusionkit.runs.record import flat_record
from fusionkit.runs.tabulate import tabulate
from fusionkit.specs import RunSpec
from fusionkit.store import Store

HEAD: dict[str, Any] = {"store": "s", "task": "classification", "label": "intent", "head": "classifier"}
FLOOR: dict[str, Any] = {**HEAD, "head": "none"}


def trained(store: Any, runs: Path, watch: Any, **choices: Any) -> tuple[Sweep, dict[tuple[str, int], dict[str, Any]]]:
    """A sweep of one fusion and its records by fusion and data seed."""
    sweep = expand_blocks(store, [{"fusions": ("last",), "epochs": (1,), **choices}])
    records = fit(store, sweep.specs, RunsFolder(runs), watch)
    return sweep, {(each["spec"]["fusion"], each["spec"]["data_seed"]): each for each in records}


def majority_of(found: dict[tuple[str, int], dict[str, Any]], seed: int) -> float:
    return float(found["majority", seed]["scores"]["test"]["accuracy"])


def labelled(store: Store, split: str) -> pd.DataFrame:
    frame = store[split].examples
    return frame[frame["label"].notna()].assign(text=lambda found: found["tokens"].map(" ".join))


def test_floors_of_classes_are_what_they_say(corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any) -> None:
    store = corpus_store("words")
    sweep, found = trained(
        store, tmp_path, watch, task="classification", label="label", shots=(2,), seeds=2, floor="tfidf"
    )
    assert [spec.fusion for spec in sweep.specs] == ["last", "last", "majority", "tfidf", "majority", "tfidf"]
    train, validation, test = (labelled(store, split) for split in ("train", "validation", "test"))
    for seed in range(2):
        drawn = train[train["id"].isin(found["last", seed]["draw"])]
        counts = Counter(drawn["label"])
        most = min(counts, key=lambda name: (-counts[name], name))
        majority, tfidf = found["majority", seed], found["tfidf", seed]
        assert majority["draw"] == tfidf["draw"] == found["last", seed]["draw"]
        assert majority["score"] == pytest.approx((test["label"] == most).mean())
        assert majority["validation_score"] == pytest.approx((validation["label"] == most).mean())
        assert majority["scores"]["test"]["matthews"] == 0.0
        rows = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]").fit(drawn["text"])
        each = {
            strength: LogisticRegression(C=strength, max_iter=1000).fit(rows.transform(drawn["text"]), drawn["label"])
            for strength in STRENGTHS
        }
        fitting = {
            strength: accuracy_score(validation["label"], model.predict(rows.transform(validation["text"])))
            for strength, model in each.items()
        }
        best = max(STRENGTHS, key=lambda strength: (fitting[strength], -strength))
        assert tfidf["floor"] == {"strength": best}
        wanted = accuracy_score(test["label"], each[best].predict(rows.transform(test["text"])))
        assert (tfidf["validation_score"], tfidf["score"]) == pytest.approx((fitting[best], wanted))
        assert set(majority["scores"]["test"]) == set(found["last", seed]["scores"]["test"])
    assert not list(tmp_path.glob("*/weights.safetensors.partial"))
    weighted = {path.parent.name for path in tmp_path.glob("*/weights.safetensors")}
    assert weighted == {spec.digest for spec in sweep.specs if not spec.is_floor}
    # The card of a head has the floors of its own draw.
    export_run(tmp_path / sweep.specs[0].digest, tmp_path.parent / "head")
    card = (tmp_path.parent / "head" / "README.md").read_text()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in card.splitlines() if line[:1] == "|"]
    [header] = [line for line in lines if "test, majority" in line]
    row = next(line for line in lines if line[0] == "accuracy" and len(line) == len(header))
    assert row[header.index("test, majority")] == f"{majority_of(found, 0):.4f}"
    # Whoever names the folder means its heads.
    assert {run.spec.fusion for run in open_runs([tmp_path])} == {"last"}
    frame = RunsFolder(tmp_path).frame()
    assert best_run(frame) in weighted
    assert best_of_each_task(frame).keys() == {"label"}
    assert "majority" not in listed_runs(frame)
    assert all(digest in listed_runs(frame) for digest in weighted)
    floor = next(spec for spec in sweep.specs if spec.is_floor)
    with pytest.raises(UsageError, match="is the floor majority: it has no head to predict with"):
        open_runs([tmp_path / floor.digest])
    before = (tmp_path / floor.digest / "run.json").stat().st_mtime_ns
    trained(store, tmp_path, watch, task="classification", label="label", shots=(2,), seeds=2, floor="tfidf")
    assert (tmp_path / floor.digest / "run.json").stat().st_mtime_ns == before


def test_the_majority_of_tags_is_that_of_each_word_type(
    corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any
) -> None:
    store = corpus_store("words")
    _, found = trained(store, tmp_path, watch, task="tagging", floor="majority")
    seen: dict[str, Counter[str]] = {}
    for words, tags in store["train"].examples[["tokens", "tags"]].itertuples(index=False):
        for word, tag in zip(words, tags, strict=True):
            seen.setdefault(word, Counter())[tag] += 1
    right = [
        (seen[word].most_common(1)[0][0] if word in seen else "O") == tag
        for words, tags in store["test"].examples[["tokens", "tags"]].itertuples(index=False)
        for word, tag in zip(words, tags, strict=True)
    ]
    scores = found["majority", 0]["scores"]["test"]
    assert scores["word_accuracy"] == pytest.approx(np.mean(right))
    # Anna, Bergen, New York of four entities; Bergen's tag is that of its one place in train.
    assert scores["f1"] == 1.0
    assert found["majority", 0]["head_parameters"] == len(seen)


def test_the_floor_of_numbers_is_their_mean_and_a_regression(
    make_store: Callable[..., Store], tmp_path: Path, watch: Any
) -> None:
    weather = ["rain", "rain and snow", "sun", "sun and sun", "snow", "rain again"]
    rows = [{"text": text, "warmth": len(text) + 0.5} for text in weather]
    store = make_store("mean", "numbers", train=rows, validation=rows, test=rows)
    _, found = trained(store, tmp_path, watch, label="warmth", floor="majority,tfidf")
    assert found["majority", 0]["scores"]["test"] == {"pearson": 0.0, "spearman": 0.0}
    assert found["tfidf", 0]["score"] > 0.9  # it has seen them
    table = tabulate(RunsFolder(tmp_path).frame()).set_index("fusion").astype({"beats_majority": object})
    assert table["beats_majority"].to_dict() == {
        "last": found["last", 0]["score"] > 0,
        "majority": None,
        "tfidf": None,
    }


def test_several_stores_have_floors_of_all_their_texts(
    make_store: Callable[..., Store], tmp_path: Path, watch: Any
) -> None:
    ours = [{"text": text, "label": label} for text, label in [("rain", "wet"), ("sun", "dry"), ("hail", "wet")]]
    theirs = [{"text": text, "label": label} for text, label in [("pluie", "wet"), ("soleil", "dry"), ("vent", "dry")]]
    one = make_store("mean", "en", train=ours, validation=ours, test=ours)
    two = make_store("mean", "fr", train=theirs, validation=theirs, test=[*theirs, *ours])
    _, found = trained(mix_of([Share(one), Share(two)]), tmp_path, watch, floor="tfidf")
    assert found["tfidf", 0]["score"] == 1.0  # words of both languages are known
    assert found["majority", 0]["score"] == pytest.approx(3 / 6)
    assert found["tfidf", 0]["parts"] == found["last", 0]["parts"]


def spec_of(task: str, label: str = "a,b") -> RunSpec:
    return RunSpec(**{**HEAD, "task": task, "label": label}, fusion="last")


def test_a_task_has_the_floors_that_say_something_of_it() -> None:
    assert read_floors(None) is None
    assert read_floors("tfidf") == read_floors(["majority", "tfidf"]) == ("majority", "tfidf")
    assert read_floors("none") == ()
    usual = {task: [spec.fusion for spec in floors_of([spec_of(task)], None)] for task in ("classification", "tagging")}
    assert usual == {"classification": ["majority"], "tagging": []}
    assert floors_of([spec_of("regression")], ()) == []
    for name in ("tfidff", "majority,none"):
        with pytest.raises(UsageError, match=r"unknown floor|floors or there is none"):
            read_floors(name)
    for task in ("joint", "mlm", "multi-label"):
        with pytest.raises(UsageError, match=f"the task {task} has no floor majority"):
            floors_of([spec_of(task)], ("majority",))
    with pytest.raises(UsageError, match="the task tagging has no floor tfidf"):
        floors_of([spec_of("tagging")], ("majority", "tfidf"))


def record(score: float, spec: dict[str, Any], **fields: Any) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if name in RunSpec.__dataclass_fields__}
    found = {
        "status": "finished", "data": "cola", "evaluated": "cola", "encoder": "minilm", "rows": "mean",
        "sides": 1, "metric": "accuracy",
        "score": score, "validation_score": score, "fusion_parameters": 8, "head_parameters": 100,
        "scores": {"test": {"accuracy": score, "matthews": 0.0}, "validation": {"accuracy": score, "matthews": 0.0}},
    }  # fmt: skip
    return {"spec": RunSpec(**{**spec, **given}).to_dict(), **found}


def table_of_cola() -> pd.DataFrame:
    """Two rates and two seeds of three fusions beside the majority, as 68.0 of CoLA were."""
    scores = {"last": 0.68, "linear": 0.67, "attention": 0.70}
    records = [
        record(score, HEAD, fusion=fusion, lr=lr, data_seed=seed, init_seed=init)
        for fusion, score in scores.items() for lr in (2e-3, 5e-4) for seed in range(2) for init in range(2)
    ]  # fmt: skip
    floors = [record(0.68, FLOOR, fusion="majority", data_seed=seed) for seed in range(2)]
    return pd.DataFrame([flat_record(each) for each in (*records, *floors)])


def test_what_does_not_beat_the_majority_is_marked() -> None:
    table = tabulate(table_of_cola(), ["fusion"])
    # A floor has no rate, and makes no option a column that is none among heads.
    assert list(table)[:2] == ["fusion", "lr"]
    rows = json.loads(table[["fusion", "lr", "majority", "beats_majority", "runs"]].to_json(orient="values"))
    assert rows == [
        [fusion, lr, 0.68, fusion == "attention", 4]
        for fusion in ("last", "linear", "attention")
        for lr in (2e-3, 5e-4)
    ] + [["majority", None, 0.68, None, 2]]
    [note] = [each for each in table.attrs["notes"] if "majority" in each]
    assert note.startswith("† not above the majority (68.0): last 0.002, last 0.0005, linear 0.002, linear 0.0005; ")
    assert "--metric matthews" in note
    one = tabulate(table_of_cola().query("fusion in ['last', 'majority']"), ["label"])
    assert one["fusion"].tolist() == ["last", "last", "majority"]  # never one mean over both


def test_a_floor_has_no_init_seed() -> None:
    runs = table_of_cola().query("lr == 0.002 or fusion == 'majority'")
    table = tabulate(runs, ["init_seed", "fusion"])
    rows = json.loads(table[["init_seed", "fusion", "majority", "runs"]].to_json(orient="values"))
    assert rows == [[init, fusion, 0.68, 2] for init in range(2) for fusion in ("last", "linear", "attention")] + [
        [None, "majority", 0.68, 2]
    ]
    beside = tabulate(runs, ["fusion", "init_seed"], baseline="majority")
    heads = beside[beside["fusion"] == "attention"]
    assert heads["difference"].tolist() == pytest.approx([0.02, 0.02])
    assert heads["pairs"].tolist() == [2, 2]


def test_heads_pair_with_a_floor_draw_by_draw() -> None:
    table = tabulate(table_of_cola(), ["fusion"], baseline="majority")
    row = table[(table["fusion"] == "attention") & (table["lr"] == 5e-4)].iloc[0]
    assert (row["pairs"], row["blocks"], row["unpaired"]) == (2, 2, 0)
    assert pd.isna(row["also_differs"])
    assert row["difference"] == pytest.approx(0.02)
    chosen = tabulate(table_of_cola(), ["fusion"], baseline="last", choose_by="validation").set_index("fusion")
    # Floors are compared and not tested: more rows would correct the heads' p-values.
    assert chosen["difference"]["majority"] == pytest.approx(0.0)
    assert pd.isna(chosen["p"]["majority"])
    assert chosen["p"].notna().sum() == 2


def test_the_report_has_floors_as_rows_and_marks_what_they_reach(tmp_path: Path) -> None:
    runs = RunsFolder(tmp_path)
    heads = [record(0.68, HEAD, fusion="last", data_seed=seed) for seed in range(2)]
    better = [record(0.75, HEAD, fusion="linear", data_seed=seed) for seed in range(2)]
    floors = [record(0.68, FLOOR, fusion=name, data_seed=seed) for name in ("majority", "tfidf") for seed in range(2)]
    for each in (*heads, *better, *floors):
        runs.write(RunSpec.from_dict(each["spec"]), {**each, "layers": []}, {})
    study = read_report_data([tmp_path])
    assert study.methods == ["last", "linear"]
    table, notes = compared(study)
    assert table.set_index("method")["is_beaten"].to_dict() == {"last": True, "linear": False}
    assert any(note.startswith("† not above the majority") for note in notes)
    (found,) = matrix_tables(study, table)
    matrix = [[cell["t"] for cell in row] for row in found["rows"]]
    assert matrix == [["last", "68.0 †"], ["linear", "75.0"], ["majority", "68.0"], ["tfidf", "68.0"]]
    groups = groups_table(study, table)
    assert [row[3]["t"] for row in groups["rows"]] == ["test", "test"]
    assert groups["columns"][3] == {"label": "scored on", "kind": "text", "filter": False}


def test_the_majority_beside_a_score_is_that_of_the_store_it_was_scored_on(
    make_store: Callable[..., Store], tmp_path: Path, watch: Any
) -> None:
    texts = [{"text": f"number {at}", "label": "wet" if at < 6 else "dry"} for at in range(9)]
    one = make_store("mean", "en", train=texts, validation=texts, test=texts[:8])
    two = make_store("mean", "fr", train=texts, validation=texts, test=texts[4:])
    _, found = trained(mix_of([Share(one)], [one, two]), tmp_path, watch)
    majority = {"en": 6 / 8, "fr": 2 / 5}
    told = found["majority", 0]["tests"]
    assert {name: scores["accuracy"] for name, scores in told.items()} == pytest.approx(majority)
    table = tabulate(RunsFolder(tmp_path).frame(each_test=True), ["evaluated", "fusion"])
    heads = table[table["fusion"] == "last"].set_index("evaluated")
    assert heads["majority"].to_dict() == pytest.approx(majority)
    scores = {name: each["accuracy"] for name, each in found["last", 0]["tests"].items()}
    assert heads["mean"].to_dict() == pytest.approx(scores)
    assert heads["beats_majority"].to_dict() == {name: scores[name] > majority[name] + 1e-9 for name in majority}
