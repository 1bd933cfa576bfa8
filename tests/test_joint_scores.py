"""Scores of intents with their slots, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fusionkit.statistics.kept_answers import KeptAnswers, answers_of, run_answers
from fusionkit.tasks import TASKS

GOLD = [
    ("fly", ["O", "B-city"]),
    ("fly", ["O", "O", "B-city", "I-city"]),
    ("fare", ["O"]),
    ("fare", []),
]
TAGS = ["O", "B-city", "I-city"]


def parts_of(gold: list[Any], predicted: list[Any], labels: list[str]) -> dict[str, KeptAnswers]:
    """The answers about an intent and its slots, ``(label, tags)`` an example."""
    (intents, slots), (said, tagged) = (map(list, zip(*side, strict=True)) for side in (gold, predicted))
    return {
        "intent": answers_of(TASKS["classification"], intents, said, []),
        "slots": answers_of(TASKS["tagging"], slots, tagged, labels),
    }


def joint_scores(gold: list[Any], predicted: list[Any], labels: list[str]) -> dict[str, float]:
    return run_answers(parts_of(gold, predicted, labels)).scores()


def test_a_frame_is_right_where_the_intent_and_every_tag_are() -> None:
    predicted = [
        ("fly", ["O", "B-city"]),  # all right
        ("fly", ["O", "O", "B-city", "O"]),  # a tag is wrong
        ("fly", ["O"]),  # the intent is wrong
        ("fare", []),  # right: there is no word to get wrong
    ]
    scores = joint_scores(GOLD, predicted, TAGS)
    assert scores["frame"] == 2 / 4
    assert scores["intent_accuracy"] == 3 / 4
    # Two gold spans and two predicted ones, of which one is right.
    assert scores["slots_f1"] == 1 / 2
    assert scores["mean"] == pytest.approx((3 / 4 + 1 / 2) / 2)


def test_a_frame_needs_more_than_right_spans() -> None:
    """``I-x`` that opens a span counts as that span for F1, but is another tag than was asked for."""
    scores = joint_scores([("a", ["B-city"])], [("a", ["I-city"])], TAGS)
    assert scores["frame"] == 0.0
    assert scores["slots_word_accuracy"] == 0.0


def test_all_right_is_one_and_all_wrong_is_zero() -> None:
    assert {joint_scores(GOLD, GOLD, TAGS)[name] for name in ("mean", "frame", "intent_accuracy", "slots_f1")} == {1.0}
    wrong = [("no", ["B-city"] * len(tags)) for _, tags in GOLD]
    assert joint_scores(GOLD, wrong, TAGS)["frame"] == 0.0
    assert joint_scores(GOLD, wrong, TAGS)["intent_accuracy"] == 0.0


def test_the_scores_of_each_task_are_there_by_their_names() -> None:
    predicted = [("fly", ["B-city"] * len(tags)) for _, tags in GOLD]
    scores = joint_scores(GOLD, predicted, TAGS)
    intents, slots = (part.scores() for part in parts_of(GOLD, predicted, TAGS).values())
    assert list(scores) == [
        "mean", "frame", *(f"intent_{name}" for name in intents), *(f"slots_{name}" for name in slots)
    ]  # fmt: skip
    assert [scores[f"intent_{name}"] for name in intents] == list(intents.values())
    assert [scores[f"slots_{name}"] for name in slots] == list(slots.values())


def test_tags_without_spans_count_by_their_words() -> None:
    scores = joint_scores([("a", ["NOUN", "VERB"])], [("a", ["NOUN", "NOUN"])], ["NOUN", "VERB"])
    assert (scores["slots_accuracy"], scores["mean"], scores["frame"]) == (0.5, 0.75, 0.0)


def test_a_frame_is_right_in_any_order_of_an_examples_labels() -> None:
    gold, predicted = [["weather", "place"], ["place"], []], [["place", "weather"], ["weather"], []]
    kinds = answers_of(TASKS["multi-label"], gold, predicted, ["place", "weather"])
    topic = answers_of(TASKS["classification"], ["a", "b", "c"], ["a", "b", "a"], ["a", "b", "c"])
    scores = run_answers({"topic": topic, "kinds": kinds}).scores()
    assert (scores["topic_accuracy"], scores["kinds_accuracy"], scores["frame"]) == (2 / 3, 2 / 3, 1 / 3)


def test_there_is_no_frame_of_numbers_of_one_task_or_of_tasks_with_examples_of_their_own() -> None:
    parts = parts_of(GOLD, GOLD, TAGS)
    sizes = answers_of(TASKS["regression"], [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0], [])
    assert run_answers(parts).frame is not None
    for found in (run_answers({**parts, "size": sizes}), run_answers({"": sizes}), run_answers(parts, apart=True)):
        assert found.frame is None
        assert "frame" not in found.scores()
