"""Scores of intents with their slots, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fusionkit import metrics
from fusionkit.metrics import label_scores, tag_scores

GOLD = [
    ("fly", ["O", "B-city"]),
    ("fly", ["O", "O", "B-city", "I-city"]),
    ("fare", ["O"]),
    ("fare", []),
]
TAGS = ["O", "B-city", "I-city"]


def joint_scores(gold: list[Any], predicted: list[Any], labels: list[str]) -> dict[str, float]:
    """Of an intent and its slots, ``(label, tags)`` an example."""
    told, found = (
        dict(zip(("intent", "slots"), map(list, zip(*side, strict=True)), strict=True)) for side in (gold, predicted)
    )
    own = {
        "intent": label_scores(told["intent"], found["intent"], []),
        "slots": tag_scores(told["slots"], found["slots"], labels),
    }
    return metrics.joint_scores(told, found, own)


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
    intents = label_scores([label for label, _ in GOLD], [label for label, _ in predicted], [])
    slots = tag_scores([tags for _, tags in GOLD], [tags for _, tags in predicted], TAGS)
    assert list(scores) == [
        "mean", "frame", *(f"intent_{name}" for name in intents), *(f"slots_{name}" for name in slots)
    ]  # fmt: skip
    assert [scores[f"intent_{name}"] for name in intents] == list(intents.values())
    assert [scores[f"slots_{name}"] for name in slots] == list(slots.values())


def test_tags_without_spans_count_by_their_words() -> None:
    scores = joint_scores([("a", ["NOUN", "VERB"])], [("a", ["NOUN", "NOUN"])], ["NOUN", "VERB"])
    assert (scores["slots_accuracy"], scores["mean"], scores["frame"]) == (0.5, 0.75, 0.0)
