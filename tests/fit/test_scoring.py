"""The own metric of class numbers is the first of the task's scores, and spans are counted as seqeval counts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities

from fusionkit.fit.data import TaskData
from fusionkit.fit.scoring import Judge
from fusionkit.fit.spans import Spans
from fusionkit.tasks import TASKS

NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def sentences(random: np.random.Generator, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and tag numbers without any grammar; some sentences are empty."""
    lengths = random.integers(0, 8, count)
    return np.concatenate([[0], np.cumsum(lengths)]), random.choice(
        len(NAMES), lengths.sum(), p=[0.4, 0.1, 0.2, 0.1, 0.2]
    )


def listed(offsets: np.ndarray, tags: np.ndarray) -> list[list[str]]:
    return [[NAMES[k] for k in tags[a:b]] for a, b in pairwise(offsets)]


@pytest.mark.parametrize("seed", range(5))
def test_f1_is_seqevals(seed: int) -> None:
    random = np.random.default_rng(seed)
    offsets, gold = sentences(random)
    found = np.where(random.random(len(gold)) < 0.7, gold, random.permutation(gold))
    expected = f1_score(listed(offsets, gold), listed(offsets, found))
    assert 0.1 < expected < 0.95
    assert Spans(NAMES, offsets, gold).f1(found) == pytest.approx(expected, abs=1e-12)


def test_spans_are_seqevals() -> None:
    offsets, tags = sentences(np.random.default_rng(9))
    expected = [len(get_entities(row)) for row in listed(offsets, tags)]
    assert len(Spans(NAMES, offsets, tags).of(tags)) == sum(expected) > 100


def test_nothing_right_or_nothing_there_is_zero() -> None:
    offsets, gold = np.array([0, 2, 4]), np.array([1, 2, 0, 3])
    assert Spans(NAMES, offsets, gold).f1(np.zeros(4, dtype=np.int64)) == 0.0
    assert Spans(NAMES, offsets, np.zeros(4, dtype=np.int64)).f1(gold) == 0.0
    assert Spans(NAMES, offsets, gold).f1(gold) == 1.0


@pytest.mark.parametrize("words", [False, True])
def test_the_own_metric_is_the_tasks_first(toy: Callable[..., TaskData], words: bool) -> None:
    data = toy(words=words)
    judge = Judge(data, data.validation)
    random = np.random.default_rng(2)
    decided = np.where(random.random(len(data.validation.targets)) < 0.6, data.validation.targets, 0)
    scores = judge.scores(decided)
    assert judge.metric == next(iter(scores)) == "accuracy"
    assert judge.own(decided) == pytest.approx(scores["accuracy"], abs=1e-12)
    assert 0.5 < scores["accuracy"] < 1.0


def test_words_without_a_row_count_as_the_default_tag(toy: Callable[..., TaskData]) -> None:
    data = toy(words=True)
    split = data.validation
    kept = np.ones(len(split.targets), dtype=bool)
    kept[::5] = False
    assert split.word_offsets is not None
    part = replace(split, kept=kept, targets=split.targets[kept], rows=split.rows[kept])
    judge = Judge(data, part)
    assert judge.own(part.targets) == pytest.approx(judge.scores(part.targets)["accuracy"], abs=1e-12)
    assert judge.own(part.targets) < 1.0


def test_numbers_are_judged_by_pearsons_correlation(toy: Callable[..., TaskData]) -> None:
    data = toy()
    gold = np.random.default_rng(0).normal(size=len(data.validation)).astype(np.float32)
    numeric = replace(data, task=TASKS["regression"], labels=[])
    judge = Judge(numeric, replace(data.validation, targets=gold, gold=gold.tolist()))
    noisy = gold + np.random.default_rng(1).normal(size=len(gold)).astype(np.float32)
    assert judge.metric == "pearson"
    assert judge.own(noisy) == pytest.approx(float(np.corrcoef(gold, noisy)[0, 1]), abs=1e-6)
