"""Multi-label classification: its loss, threshold and scores against scikit-learn and independent formulas."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from sklearn.preprocessing import MultiLabelBinarizer

import fusionkit
from fusionkit import predict as live
from fusionkit.dataset.draws import draw_of
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.model.checkpoint import open_run
from fusionkit.fit.model.fused import build_model, threshold_of
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.model.warm_start import load_start_weights, open_starts
from fusionkit.fit.train.decisions import decide, predict, score
from fusionkit.fit.train.f1 import best_threshold
from fusionkit.fit.train.loop import train_run
from fusionkit.heads import build_head
from fusionkit.io.files import read_json
from fusionkit.specs import RunSpec
from fusionkit.statistics.kept_answers import answers_of
from fusionkit.store import Store
from fusionkit.tasks import TASKS
from fusionkit.tasks.table import class_marks

WORDS = {"rain": "weather", "snow": "weather", "soup": "food", "bread": "food", "Oslo": "place", "Bergen": "place"}
SENTENCES = [" ".join(pair) for pair in itertools.permutations(WORDS, 2)] + ["nothing here", "quite empty", *WORDS]


def row(text: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"text": text, "topics": [*dict.fromkeys(WORDS[word] for word in text.split() if word in WORDS), *more]}


@pytest.fixture(scope="module")
def topics(make_store: Callable[..., Store]) -> Store:
    """Sentences of words with topics: two, one or none; a topic of one test sentence is not in train."""
    return make_store(
        "mean",
        train=[row(text) for text in SENTENCES],
        validation=[row(f"some {text}") for text in SENTENCES[::2]],
        test=[*(row(f"the {text}") for text in SENTENCES[1::2]), row("rain again", ("sport",))],
    )


def spec_of(**fields: Any) -> RunSpec:
    given = {"fusion": "linear", "epochs": 30, "batch_size": 8, **fields}
    return RunSpec(store="s", task="multi-label", label="topics", head="sigmoid-classifier", **given)


def data_of(store: Store) -> Any:
    return load_task(store, *choose_task(store, "multi-label", None), None)


def lists(seed: int, names: str, n: int = 60) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [[name for name in names if rng.random() < 0.3] for _ in range(n)]


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_scikit_learns(seed: int) -> None:
    gold, found = lists(seed, "abcd"), lists(seed + 10, "abce")
    told = MultiLabelBinarizer(classes=list("abcde")).fit([]).transform(gold)
    said = MultiLabelBinarizer(classes=list("abcde")).fit([]).transform(found)
    scores = answers_of(TASKS["multi-label"], gold, found, list("abcde")).scores()
    assert list(scores) == ["micro_f1", "macro_f1", "accuracy"]
    assert scores["micro_f1"] == pytest.approx(f1_score(told, said, average="micro"), abs=1e-12)
    assert scores["macro_f1"] == pytest.approx(f1_score(told, said, average="macro", zero_division=0), abs=1e-12)
    assert scores["accuracy"] == pytest.approx(accuracy_score(told, said), abs=1e-12)


def test_nothing_told_and_nothing_found_scores_as_scikit_learn_has_it() -> None:
    found = answers_of(TASKS["multi-label"], [[], []], [[], []], ["a"])
    assert found.scores() == {"micro_f1": 0.0, "macro_f1": 0.0, "accuracy": 1.0}


def test_the_loss_is_the_binary_cross_entropy_elementwise() -> None:
    head = build_head("sigmoid-classifier", 4, 3, 0.0).double()
    torch.manual_seed(0)
    scores, offsets = 30 * torch.randn(50, 3, dtype=torch.float64), torch.arange(51)
    targets = (torch.rand(50, 3) < 0.4).double()
    wide = scores.numpy().astype(np.longdouble)
    likely, unlikely = 1 / (1 + np.exp(-wide)), 1 / (1 + np.exp(wide))
    each = -np.where(targets.numpy() == 1, np.log(likely), np.log(unlikely))
    ours = torch.stack([
        head.loss(scores[n : n + 1, k : k + 1], targets[n : n + 1, k : k + 1], offsets[:2])
        for n in range(50)
        for k in range(3)
    ])  # fmt: skip
    np.testing.assert_allclose(ours, each.ravel().astype(np.float64), rtol=1e-7, atol=3e-9)  # e^-20 is left out
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(scores, targets)
    torch.testing.assert_close(head.loss(scores, targets, offsets), wanted)
    np.testing.assert_allclose(head.decode(scores, offsets), likely.astype(np.float64), rtol=1e-12)
    assert float(head.loss(scores[:0], targets[:0], offsets[:1])) == 0.0


@pytest.mark.parametrize("seed", range(6))
def test_the_threshold_is_the_best_of_all(seed: int) -> None:
    """Held against every threshold that can decide otherwise, by scikit-learn's F1; with ties and an unseen class."""
    gold = [[*labels, *(["unseen"] if seed % 2 and n % 7 == 0 else [])] for n, labels in enumerate(lists(seed, "abc"))]
    targets = class_marks(gold, {"a": 0, "b": 1, "c": 2})
    rng = np.random.default_rng(seed)
    likely = np.clip(0.3 * targets + rng.random(targets.shape), 0, 1).astype(np.float32).round(2)
    threshold, f1 = best_threshold(targets, gold, torch.from_numpy(likely))
    told = MultiLabelBinarizer(classes=["a", "b", "c", "unseen"]).fit([]).transform(gold)

    def at(cut: float) -> float:
        said = np.concatenate([likely > cut, np.zeros((len(likely), 1), dtype=bool)], 1)
        return float(f1_score(told, said.astype(int), average="micro", zero_division=0))

    assert at(threshold) == pytest.approx(f1, abs=1e-12)
    assert f1 == pytest.approx(max(at(cut) for cut in [-0.001, *np.unique(likely)]), abs=1e-12)


def test_neighbouring_numbers_are_told_apart_and_nothing_right_leaves_a_half() -> None:
    low = np.float32(0.3)
    likely = torch.tensor([[np.nextafter(low, np.float32(1))], [low]])
    threshold, f1 = best_threshold(np.array([[1], [0]], dtype=np.float32), [["a"], []], likely)
    assert f1 == 1.0
    assert (likely > threshold).tolist() == [[True], [False]]
    assert best_threshold(np.zeros((2, 1), dtype=np.float32), [[], []], likely) == (0.5, 0.0)
    assert best_threshold(np.zeros((0, 1), dtype=np.float32), [], likely[:0]) == (0.5, 0.0)


def test_a_column_of_lists_is_found_and_empty_ones_count(topics: Store) -> None:
    data = data_of(topics)
    assert (data.task.name, data.label, data.labels) == ("multi-label", "topics", ["food", "place", "weather"])
    assert data.train.targets.shape == (len(SENTENCES), 3)
    assert data.train.gold[SENTENCES.index("nothing here")] == []
    assert "test: 1 example with a label that train lacks (sport): counted as errors" in data.notes


def test_a_run_learns_keeps_its_threshold_and_counts_what_train_lacks(topics: Store) -> None:
    data = data_of(topics)
    outcome = train_run(spec_of(), data, tuple(range(7)), 384, lambda: None)
    assert outcome.metric == "micro_f1"
    assert outcome.validation_score > 0.9
    assert outcome.threshold == float(outcome.weights["head.threshold"])
    # The one label that train lacks is missed in an example, and a class of its own in the mean.
    assert outcome.scores["test"]["accuracy"] <= 1 - 1 / len(data.test)
    assert outcome.scores["test"]["macro_f1"] <= 3 / 4


def test_runs_together_are_runs_alone(topics: Store, tmp_path: Path, watch: Any) -> None:
    choices: dict[str, Any] = {"task": "multi-label", "fusions": ["linear"], "epochs": [5], "batch_sizes": [8]}
    specs = expand(topics, **choices, seeds=3)
    fit(topics, specs, RunsFolder(tmp_path / "together"), watch)
    alone = RunsFolder(tmp_path / "alone")
    for spec in specs:
        fit(topics, [spec], alone, watch)
        one, other = (RunsFolder(tmp_path / name).record(spec) for name in ("together", "alone"))
        assert one is not None
        assert other is not None
        assert [point["loss"] for point in one["curve"]] == pytest.approx(
            [point["loss"] for point in other["curve"]], rel=1e-4
        )
        assert one["threshold"] == pytest.approx(other["threshold"], abs=1e-3)
        # The weights that are kept decide as the record says.
        run, data = open_run(tmp_path / "together" / spec.digest), data_of(topics)
        assert threshold_of(run.model) == one["threshold"]
        assert score(run.whole, data, data.test, tuple(range(7))) == pytest.approx(one["scores"]["test"])
        assert score(run.whole, data, data.validation, tuple(range(7))) == pytest.approx(one["scores"]["validation"])


def test_the_threshold_is_chosen_on_all_of_validation(topics: Store) -> None:
    data = data_of(topics)
    outcome = train_run(spec_of(epochs=2, validate_on=6), data, tuple(range(7)), 384, lambda: None)
    model = model_of(spec_of(), 7, 384, {"": 3})
    model.load_state_dict(outcome.weights)
    likely = decide(model, data, data.validation, tuple(range(7)))[""]
    threshold, f1 = best_threshold(data.validation.targets, data.validation.gold, likely)
    assert (outcome.threshold, outcome.validation_score) == pytest.approx((threshold, f1), abs=1e-6)


def test_live_answers_are_the_stored_ones(topics: Store, tmp_path: Path, watch: Any) -> None:
    [spec] = expand(topics, task="multi-label", fusions=["linear"], epochs=[10], batch_sizes=[8])
    fit(topics, [spec], RunsFolder(tmp_path), watch)
    run, data = open_run(tmp_path / spec.digest), data_of(topics)
    wanted = predict(run.model, data, data.test, tuple(range(7)))
    found = live.load(tmp_path, device="cpu").predict(topics["test"].examples["text"].tolist())
    for prediction, labels in zip(found, wanted, strict=True):
        answer = prediction["topics"]
        assert isinstance(answer, live.Labels)
        assert answer.labels == labels == [name for name, p in answer.probabilities.items() if p > answer.threshold]
        assert list(answer.probabilities) == data.labels
    assert read_json(tmp_path / spec.digest / "run.json")["threshold"] == found[0]["topics"].threshold  # type: ignore[union-attr]


def test_a_draw_holds_so_many_of_each_class(topics: Store) -> None:
    data = data_of(topics)
    examples = draw_of(spec_of(shots=3, draw="stratified"), data)
    assert examples is not None
    for name in data.labels:
        assert sum(name in data.train.gold[k] for k in examples) >= 3
    uniform = draw_of(spec_of(shots=3), data)
    assert uniform is not None
    assert len(uniform) == 3 * 3


@pytest.mark.parametrize("given", [{"class_weights": "balanced"}, {"label_smoothing": 0.1}])
def test_what_its_loss_has_no_place_for_is_refused(given: dict[str, Any], topics: Store) -> None:
    with pytest.raises(UsageError, match="its loss is no cross-entropy over classes"):
        expand(topics, task="multi-label", **given)


def test_other_columns_are_refused(topics: Store, corpus_store: Callable[[str], Store]) -> None:
    store = corpus_store("tokens")
    with pytest.raises(UsageError, match="does not suit the task multi-label"):
        choose_task(store, "multi-label", "label")
    with pytest.raises(UsageError, match="no column for the task multi-label") as caught:
        choose_task(store, "multi-label", None)
    assert caught.value.expected == "a column with a list of labels"
    with pytest.raises(UsageError, match="does not suit the task classification"):
        choose_task(topics, "classification", "topics")
    with pytest.raises(UsageError, match="fewer than two classes"):
        load_task(store, TASKS["multi-label"], "none", None)


def test_evaluated_over_its_store_a_run_has_its_scores_and_over_the_source_the_same_answers(
    topics: Store, tmp_path: Path, watch: Any
) -> None:
    [spec] = expand(topics, task="multi-label", fusions=["linear"], epochs=[10], batch_sizes=[8])
    [record] = fit(topics, [spec], RunsFolder(tmp_path), watch)
    for split in ("validation", "test"):
        [stored] = fusionkit.evaluate(tmp_path, data=topics.path, split=split)
        assert stored.scores == pytest.approx(record["scores"][split], abs=1e-12)
        source = Path(str(topics.path)).parent / f"{split}.jsonl"
        [live] = fusionkit.evaluate(tmp_path, data=source, device="cpu")
        [one], [other] = stored.heads.values(), live.heads.values()
        assert [set(labels) for labels in one.gold] == [set(labels) for labels in other.gold]
        assert one.predicted == other.predicted
        assert live.scores == pytest.approx(stored.scores, abs=1e-12)
        assert len({tuple(labels) for labels in one.predicted}) > 2


def test_a_run_that_begins_with_another_matches_its_classes_by_name(topics: Store, tmp_path: Path, watch: Any) -> None:
    data, layers = data_of(topics), tuple(range(7))
    [spec] = expand(topics, task="multi-label", fusions=["linear"], epochs=[10], batch_sizes=[8])
    fit(topics, [spec], RunsFolder(tmp_path), watch)
    [start] = open_starts([tmp_path])
    wanted = decide(start.model, data, data.test, layers)[""]
    order = [1, 2, 0]  # of the classes here: each is looked up among those of the run
    model = build_model(spec, 7, 384, 3)
    load_start_weights(model, replace(spec, init_part="both"), start, {"": [data.labels[k] for k in order]})
    torch.testing.assert_close(decide(model, data, data.test, layers)[""], wanted[:, order])
    assert threshold_of(model) == threshold_of(start.model)
    assert float((wanted - wanted[:, order]).abs().max()) > 0.1  # another order would be seen
