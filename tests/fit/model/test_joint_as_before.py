"""Joint runs keep the digests, scores and names of weights that they had when joint was a task of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.io.files import read_json
from fusionkit.store import Store

# Of the corpus of these tests over rows of tokens, four epochs of batches of four.
DIGESTS = {
    ("attention", "classifier+tagger", "shared", None): "b5e1c075d117a659",
    ("last", "classifier+tagger", "shared", None): "e98fcbe6e9edb575",
    ("attention", "classifier+crf", "each", None): "c47b7fb399a7b7c6",
    ("last", "classifier+crf", "each", None): "ea97e9246b387f9e",
    ("attention", "classifier+linear-tagger", "shared", 2): "074288b8d953ea02",
    ("last", "classifier+linear-tagger", "shared", 2): "aa4f295e67af3b36",
}
CASES: list[dict[str, Any]] = [
    {},
    {"head": "classifier+crf", "joint_fusion": "each"},
    {"label": "tags,label", "pool": "mean", "head": "classifier+linear-tagger", "shots": (2,)},
]
SCORES = {"mean": 7 / 12, "frame": 1 / 3, "intent_accuracy": 2 / 3, "intent_micro_f1": 2 / 3, "intent_macro_f1": 5 / 9,
          "intent_matthews": 0.6123724356957946, "slots_f1": 1 / 2, "slots_precision": 1.0, "slots_recall": 1 / 3,
          "slots_word_accuracy": 11 / 14}  # fmt: skip
# Sums of the weights' absolute values.
SHARED = {
    "fusion.query": 1.9671, "head.intent.score.0.bias": 6.3444, "head.intent.score.0.weight": 2524.9868,
    "head.intent.score.3.bias": 7.7371, "head.intent.score.3.weight": 2065.6367, "head.intent.score.6.bias": 0.0306,
    "head.intent.score.6.weight": 16.0248, "head.slots.score.0.bias": 6.5548, "head.slots.score.0.weight": 2536.5698,
    "head.slots.score.3.bias": 7.8772, "head.slots.score.3.weight": 2077.002, "head.slots.score.6.bias": 0.1482,
    "head.slots.score.6.weight": 40.2246,
}  # fmt: skip
EACH = {
    "fusion.intent.query": 1.4815, "fusion.slots.query": 1.9387, "head.intent.score.0.bias": 6.3501,
    "head.intent.score.0.weight": 2525.1353, "head.intent.score.3.bias": 7.7332,
    "head.intent.score.3.weight": 2065.6499, "head.intent.score.6.bias": 0.0306, "head.intent.score.6.weight": 16.0388,
    "head.slots.end": 0.2649, "head.slots.score.0.bias": 6.5604, "head.slots.score.0.weight": 2535.2266,
    "head.slots.score.3.bias": 7.8757, "head.slots.score.3.weight": 2076.6372, "head.slots.score.6.bias": 0.1486,
    "head.slots.score.6.weight": 40.2023, "head.slots.start": 0.131, "head.slots.transitions": 1.2423,
}  # fmt: skip
RUNS = {"shared": (SHARED, [2.19320, 1.58200, 1.14459, 0.87475]), "each": (EACH, [6.08372, 4.02804, 2.85964, 2.17243])}


def runs_of(store: Store) -> list[Any]:
    return [
        spec
        for case in CASES
        for spec in expand(store, task="joint", fusions=["attention", "last"], epochs=[4], batch_sizes=[4], **case)
    ]


def test_digests_are_those_of_before(corpus_store: Callable[[str], Store]) -> None:
    found = {
        (spec.fusion, spec.head, spec.joint_fusion, spec.shots): dataclasses.replace(spec, store="0" * 16).digest
        for spec in runs_of(corpus_store("tokens"))
    }
    assert found == DIGESTS


@pytest.mark.parametrize("joint_fusion", RUNS)
def test_scores_losses_and_weights_are_those_of_before(
    joint_fusion: str, corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any
) -> None:
    store = corpus_store("tokens")
    [spec] = [
        spec
        for spec in runs_of(store)
        if (spec.fusion, spec.joint_fusion, spec.shots) == ("attention", joint_fusion, None)
    ]
    fit(store, [spec], RunsFolder(tmp_path), watch)
    folder = tmp_path / spec.digest
    record, weights = read_json(folder / "run.json"), load_file(folder / "weights.safetensors")
    told, losses = RUNS[joint_fusion]
    assert {name: record["scores"]["test"][name] for name in SCORES} == pytest.approx(SCORES)
    assert (record["metric"], record["best_epoch"], record["validation_score"]) == ("mean", 3, 0.75)
    assert [point["loss"] for point in record["curve"]] == pytest.approx(losses, rel=1e-3)
    assert {name: float(value.abs().sum()) for name, value in weights.items()} == pytest.approx(told, rel=1e-3)
