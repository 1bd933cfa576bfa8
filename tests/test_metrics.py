"""Scores against formulas written out, and span F1 against a counter of our own."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from fusionkit.metrics import class_scores, is_clearly_better, number_scores
from fusionkit.statistics.kept_answers import answers_of, positive_of
from fusionkit.tasks import TASKS

Sentences = list[list[str]]
SPAN_TAGS = ["O", "B-place", "I-place", "B-who", "I-who"]


def scores_of(task: str, gold: list[Any], predicted: list[Any], labels: list[str]) -> dict[str, float]:
    return answers_of(TASKS[task], gold, predicted, labels).scores()


def test_two_classes_by_hand() -> None:
    """5 true positives, 2 false positives, 1 false negative, 4 true negatives."""
    gold = ["yes"] * 6 + ["no"] * 6
    predicted = ["yes"] * 5 + ["no"] + ["yes"] * 2 + ["no"] * 4
    scores = scores_of("classification", gold, predicted, ["no", "yes"])
    assert scores["accuracy"] == scores["micro_f1"] == pytest.approx(9 / 12)
    f1_yes, f1_no = 2 * 5 / (2 * 5 + 2 + 1), 2 * 4 / (2 * 4 + 1 + 2)
    assert scores["macro_f1"] == pytest.approx((f1_yes + f1_no) / 2)
    assert scores["positive_f1"] == pytest.approx(f1_yes)
    assert scores_of("classification", gold, predicted, ["yes", "no"])["positive_f1"] == pytest.approx(f1_no)
    assert "positive_f1" not in scores_of("classification", gold, predicted, ["maybe", "no", "yes"])
    assert scores["matthews"] == pytest.approx((5 * 4 - 2 * 1) / math.sqrt(7 * 6 * 6 * 5))


@pytest.mark.parametrize(
    ("labels", "positive"),
    [
        (["0", "1"], "1"), (["no", "yes"], "yes"), (["false", "true"], "true"), (["negative", "positive"], "positive"),
        (["equivalent", "not_equivalent"], "equivalent"), (["Ironic", "non-ironic"], "Ironic"), (["a", "b", "c"], None),
        (["NOT toxic", "toxic"], "toxic"), (["hate", "nohate"], "hate"),
    ],
)  # fmt: skip
def test_the_positive_class_of_two_is_the_second_unless_that_is_the_negation_of_the_first(
    labels: list[str], positive: str | None
) -> None:
    assert positive_of(labels) == positive


def test_three_classes_by_hand() -> None:
    """Confusion, gold by predicted: a 2 1 0, b 0 3 1, c 1 0 2."""
    counts = np.array([[2, 1, 0], [0, 3, 1], [1, 0, 2]])
    gold = [g for i, g in enumerate("abc") for j in range(3) for _ in range(counts[i, j])]
    predicted = [p for i in range(3) for j, p in enumerate("abc") for _ in range(counts[i, j])]
    scores = scores_of("classification", gold, predicted, ["a", "b", "c"])
    assert scores["accuracy"] == scores["micro_f1"] == pytest.approx(7 / 10)
    f1 = [2 * 2 / (3 + 3), 2 * 3 / (4 + 4), 2 * 2 / (3 + 3)]  # twice the diagonal over row plus column
    assert scores["macro_f1"] == pytest.approx(sum(f1) / 3)
    # Gorodkin's generalisation: (c s − Σ p t) / √((s² − Σ p²) (s² − Σ t²))
    t, p, s, c = [3, 4, 3], [3, 4, 3], 10, 7
    dot = sum(a * b for a, b in zip(p, t, strict=True))
    root = math.sqrt((s * s - sum(a * a for a in p)) * (s * s - sum(a * a for a in t)))
    assert scores["matthews"] == pytest.approx((c * s - dot) / root)


def test_a_constant_prediction_has_no_correlation() -> None:
    scores = scores_of("classification", ["a", "b", "a", "c"], ["a", "a", "a", "a"], ["a", "b", "c"])
    assert scores["accuracy"] == 0.5
    assert scores["matthews"] == 0.0
    assert scores["macro_f1"] == pytest.approx((2 * 2 / (2 + 4)) / 3)


def test_a_label_that_was_never_learned_is_an_error() -> None:
    scores = scores_of("classification", ["a", "new"], ["a", "a"], ["a", "b"])
    assert scores["accuracy"] == 0.5
    assert scores["macro_f1"] == pytest.approx((2 * 1 / (1 + 2)) / 2)  # over a and new, not over b


@pytest.mark.parametrize("seed", range(10))
def test_scores_of_classes_are_those_of_scikit_learn(seed: int) -> None:
    """Also of classes that are told and never predicted, or the other way round."""
    rng = np.random.default_rng(seed)
    gold, predicted = rng.integers(0, 2 + seed % 4, 60), rng.integers(seed % 3, 5, 60)
    predicted = np.where(rng.random(60) < 0.4, gold, predicted)
    scores = class_scores(gold, predicted)
    assert scores["accuracy"] == scores["micro_f1"] == pytest.approx(accuracy_score(gold, predicted), abs=1e-12)
    assert scores["micro_f1"] == pytest.approx(f1_score(gold, predicted, average="micro"), abs=1e-12)
    assert scores["macro_f1"] == pytest.approx(f1_score(gold, predicted, average="macro", zero_division=0), abs=1e-12)
    assert scores["matthews"] == pytest.approx(matthews_corrcoef(gold, predicted), abs=1e-12)


def test_the_order_of_the_classes_changes_no_bit_of_a_score() -> None:
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 9, (2, 200))
    found = [class_scores(order[gold], order[predicted]) for order in (rng.permutation(9) for _ in range(50))]
    assert all(each == found[0] for each in found)


def spans(tags: list[str]) -> set[tuple[str, int, int]]:
    """Entities as conlleval finds them: an ``I-`` that continues nothing of its type opens one."""
    found, start = set(), 0
    for at, (before, tag) in enumerate(pairwise(["O", *tags, "O"])):
        ends = before != "O" and (tag == "O" or tag[0] == "B" or tag[2:] != before[2:])
        if ends:
            found.add((before[2:], start, at))
        if tag != "O" and (ends or before == "O"):
            start = at
    return found


def counted(gold: Sentences, predicted: Sentences) -> dict[str, float]:
    right = theirs = ours = 0
    for wanted, given in zip(gold, predicted, strict=True):
        right += len(spans(wanted) & spans(given))
        theirs, ours = theirs + len(spans(wanted)), ours + len(spans(given))
    words = [g == p for wanted, given in zip(gold, predicted, strict=True) for g, p in zip(wanted, given, strict=True)]
    return {
        "f1": 2 * right / (theirs + ours) if right else 0.0,
        "precision": right / ours if ours else 0.0,
        "recall": right / theirs if theirs else 0.0,
        "word_accuracy": sum(words) / len(words),
    }


def test_the_counter_finds_spans_as_conlleval_does() -> None:
    tags = ["B-who", "I-who", "O", "I-place", "B-place", "I-place", "I-who", "B-who", "B-who"]
    expected = {("who", 0, 2), ("place", 3, 4), ("place", 4, 6), ("who", 6, 7), ("who", 7, 8), ("who", 8, 9)}
    assert spans(tags) == expected
    assert spans([]) == spans(["O", "O"]) == set()


@pytest.mark.parametrize("seed", range(20))
def test_span_scores_equal_those_of_a_counter(seed: int) -> None:
    """Over random tags, also ones that no gold standard would hold."""
    rng = np.random.default_rng(seed)
    gold = [rng.choice(SPAN_TAGS, n).tolist() for n in rng.integers(1, 15, 30)]
    noise = [rng.random(len(tags)) < 0.3 for tags in gold]
    predicted = [
        [str(rng.choice(SPAN_TAGS)) if other else tag for tag, other in zip(tags, flips, strict=True)]
        for tags, flips in zip(gold, noise, strict=True)
    ]
    scores = scores_of("tagging", gold, predicted, SPAN_TAGS)
    assert scores == {name: pytest.approx(value, abs=1e-12) for name, value in counted(gold, predicted).items()}
    assert 0.2 < scores["f1"] < 0.9
    assert next(iter(scores)) == "f1"


def test_a_span_counts_only_as_a_whole() -> None:
    gold = [["B-place", "I-place", "O", "B-who"]]
    scores = scores_of("tagging", gold, [["B-place", "O", "O", "B-who"]], SPAN_TAGS)
    assert (scores["precision"], scores["recall"], scores["f1"], scores["word_accuracy"]) == (0.5, 0.5, 0.5, 0.75)


def test_no_span_found_is_a_score_of_zero() -> None:
    scores = scores_of("tagging", [["B-who", "O"]], [["O", "O"]], SPAN_TAGS)
    assert (scores["f1"], scores["precision"], scores["recall"], scores["word_accuracy"]) == (0.0, 0.0, 0.0, 0.5)


def test_a_split_without_spans_has_the_same_scores_as_the_others() -> None:
    with_spans = scores_of("tagging", [["B-who"]], [["B-who"]], SPAN_TAGS)
    without = scores_of("tagging", [["O", "O"]], [["O", "O"]], SPAN_TAGS)
    assert list(without) == list(with_spans)
    assert (without["f1"], without["word_accuracy"]) == (0.0, 1.0)


def test_parts_of_speech_are_scored_word_by_word() -> None:
    scores = scores_of("tagging", [["DET", "NOUN"], ["VERB"]], [["DET", "VERB"], ["VERB"]], ["DET", "NOUN", "VERB"])
    assert next(iter(scores)) == "accuracy"
    assert scores["accuracy"] == scores["micro_f1"] == pytest.approx(2 / 3)
    assert scores["macro_f1"] == pytest.approx((1 + 0 + 2 / 3) / 3)


def test_one_label_throughout_is_right_and_has_no_correlation() -> None:
    scores = scores_of("classification", ["a", "a"], ["a", "a"], ["a", "b"])
    # The positive class, b, is neither told nor predicted.
    assert scores == {"accuracy": 1.0, "micro_f1": 1.0, "macro_f1": 1.0, "matthews": 0.0, "positive_f1": 0.0}


def test_every_tasks_own_metric_comes_first() -> None:
    first = {}
    for name, task in TASKS.items():
        gold: list[Any] = [["O", "B-x"]] if task.unit == "word" else [1.5, 2.0] if task.numeric else ["B-x", "O"]
        if task.several:
            gold = [["B-x"], []]
        if task.unit == "row":
            gold = [[7], [3, 4]]
        found = [[(0.5, 7)], [(0.5, 1), (0.5, 4)]] if task.unit == "row" else gold
        first[name] = next(iter(scores_of(name, gold, found, ["O", "B-x"])))
    assert first == {
        "classification": "accuracy", "pair-classification": "accuracy", "tagging": "f1", "regression": "pearson",
        "multi-label": "micro_f1", "mlm": "perplexity",
    }  # fmt: skip


def test_correlations_of_numbers_by_hand() -> None:
    gold, predicted = [1.0, 2.0, 3.0, 4.5, 2.0], [0.5, 2.5, 2.0, 9.0, 2.5]
    x, y = np.array(gold), np.array(predicted)
    x, y = x - x.mean(), y - y.mean()
    scores = number_scores(gold, predicted)
    assert list(scores) == ["pearson", "spearman"]  # the task's own metric first
    assert scores["pearson"] == pytest.approx((x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()), rel=1e-12)
    # Ranks, the mean of those that tie: gold 1 2.5 4 5 2.5, predicted 1 3.5 2 5 3.5.
    a, b = np.array([1, 2.5, 4, 5, 2.5]) - 3, np.array([1, 3.5, 2, 5, 3.5]) - 3
    assert scores["spearman"] == pytest.approx((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()), rel=1e-12)


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [
        ([1.0, 2.0, 3.0], [2.5, 2.5, 2.5]),
        ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]),
        ([1.0], [1.0]),
        ([], []),
        ([1.0, 2.0, 3.0], [1.0, math.nan, 2.0]),
        ([1.0, 2.0, 3.0], [1.0, math.inf, 2.0]),
    ],
)
def test_numbers_without_a_correlation_score_zero_and_say_nothing(gold: list[float], predicted: list[float]) -> None:
    assert number_scores(gold, predicted) == {"pearson": 0.0, "spearman": 0.0}  # a warning would be an error


def test_numbers_that_hardly_differ_are_scored_without_a_warning() -> None:
    scores = number_scores([1.0, 2.0, 3.0], [1e15, 1e15 + 1, 1e15 + 2])
    assert scores == {"pearson": pytest.approx(1.0), "spearman": pytest.approx(1.0)}
    assert number_scores([1.0, 2.0], [4.0, 3.0]) == {"pearson": -1.0, "spearman": pytest.approx(-1.0)}


def test_a_mean_is_not_better_than_the_score_that_it_is_the_mean_of() -> None:
    mean = (0.1 + 0.1 + 0.1) / 3
    assert mean > 0.1
    assert not is_clearly_better("accuracy", mean, 0.1)
    assert is_clearly_better("accuracy", 0.1 + 1e-9, 0.1)
    assert is_clearly_better("perplexity", 3.0, 3.1)
    assert not is_clearly_better("perplexity", 3.1, 3.1 * (1 + 1e-15))
