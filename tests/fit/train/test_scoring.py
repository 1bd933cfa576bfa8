"""The scores of class numbers are those of the named answers, and spans are counted as seqeval counts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities

from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.train.decisions import named
from fusionkit.fit.train.evaluate import Evaluator
from fusionkit.fit.train.f1 import Spans
from fusionkit.statistics.answer_bytes import from_bytes, from_text, to_bytes, to_text
from fusionkit.statistics.examples import SCORES
from fusionkit.statistics.kept_answers import answers_of
from fusionkit.tags import spans_of
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
    both = torch.from_numpy(np.stack([found, gold]))  # of two runs at once
    assert Spans(NAMES, offsets, gold).f1(both).tolist() == pytest.approx([expected, 1.0], abs=1e-12)


def test_spans_are_seqevals() -> None:
    offsets, tags = sentences(np.random.default_rng(9))
    expected = [len(get_entities(row)) for row in listed(offsets, tags)]
    spans = Spans(NAMES, offsets, tags)
    assert spans.gold == sum(expected) > 100
    assert [int(count) for count in spans.counts(torch.from_numpy(tags))] == [spans.gold, spans.gold]


def test_nothing_right_or_nothing_there_is_zero() -> None:
    offsets, gold = np.array([0, 2, 4]), np.array([1, 2, 0, 3])
    nothing, tags = torch.zeros(4, dtype=torch.int64), torch.from_numpy(gold)
    assert float(Spans(NAMES, offsets, gold).f1(nothing)) == 0.0
    assert float(Spans(NAMES, offsets, nothing.numpy()).f1(tags)) == 0.0
    assert float(Spans(NAMES, offsets, nothing.numpy()).f1(nothing)) == 0.0
    assert float(Spans(NAMES, offsets, gold).f1(tags)) == 1.0


@pytest.mark.parametrize("strange", ["_", "-", "o", "", "S-PER", "I-"])
def test_a_gold_tag_of_another_scheme_marks_no_span(strange: str) -> None:
    """Only the scored split can have one: train's tags decide that spans are counted."""
    names = [*NAMES, strange]
    gold, found = [1, 2, 0, 5, 0, 2], [1, 2, 0, 0, 0, 2]
    offsets, texts = np.array([0, 4, 6]), [names[k] for k in gold]
    spans = Spans(names, offsets, np.array(gold))
    assert spans.gold == sum(len(spans_of(texts[a:b])) for a, b in pairwise(offsets)) == 2
    assert float(spans.f1(torch.tensor(found))) == 1.0
    assert float(spans.f1(torch.zeros(6, dtype=torch.int64))) == 0.0


@pytest.mark.parametrize("words", [0, 1])
def test_a_split_of_hardly_any_words_has_its_spans(words: int) -> None:
    tags = torch.tensor([[2] * words, [0] * words], dtype=torch.int64)
    spans = Spans(NAMES, np.array([0, 0, words]), np.full(words, 2))
    assert [count.tolist() for count in spans.counts(tags)] == [[words, 0]] * 2


@pytest.mark.parametrize("words", [False, True])
def test_the_own_metric_is_the_tasks_first(toy: Callable[..., TaskData], words: bool) -> None:
    data = toy(words=words)
    judge = Evaluator(data, data.validation)
    random = np.random.default_rng(2)
    decided = np.where(random.random(len(data.validation.targets)) < 0.6, data.validation.targets, 0)
    both = torch.from_numpy(np.stack([decided, data.validation.targets]))
    scores, perfect = judge.scores(both)
    assert judge.metric == next(iter(scores)) == "accuracy"
    assert judge.own(both) == pytest.approx([scores["accuracy"], 1.0], abs=1e-12)
    assert 0.5 < scores["accuracy"] < perfect["accuracy"] == 1.0
    check_kept(judge, data, data.validation, both[0])


def check_kept(judge: Evaluator, data: TaskData, split: TaskSplit, decided: torch.Tensor) -> None:
    """What is kept of answers, also on disk, gives their scores to the last bit, each as a sum over examples."""
    (kept,), (scores,) = judge.kept(decided.unsqueeze(0)), judge.scores(decided.unsqueeze(0))
    of_names = answers_of(data.task, split.gold, named(data, split, decided), data.labels)
    (part,) = kept.parts.values()
    assert kept.scores() == of_names.scores() == scores
    assert part.examples == of_names.examples
    again = from_bytes(to_bytes({"store": kept}))["store"]
    assert again.scores() == scores
    brief = from_text(to_text({"store": kept}) or "")["store"]  # without the words of a tagger of spans
    assert brief.scores().items() <= scores.items()
    assert next(iter(brief.scores())) == judge.metric
    for metric, score in scores.items():
        [(answers, own, _)] = again.terms(metric)
        counts = answers.counts(own, answers.classes)
        assert counts is not None
        assert len(counts) == len(split)
        assert float(SCORES[own](counts.sum(0))) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_entities_have_the_tasks_scores(
    toy: Callable[..., TaskData], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where words have no row, and where gold has tags that train has not."""
    random = np.random.default_rng(seed)
    offsets, gold = sentences(random)
    kept = random.random(len(gold)) < 0.9
    data = replace(toy(words=True), labels=NAMES[:4], default="O")
    split = replace(
        data.validation,
        gold=listed(offsets, gold),
        kept=kept,
        word_offsets=offsets,
        targets=np.where(gold < 4, gold, -1)[kept],
    )
    decided = torch.from_numpy(np.where(random.random(len(gold)) < 0.7, np.minimum(gold, 3), 0)[kept])
    judge = Evaluator(data, split)
    several = torch.stack([decided, torch.zeros_like(decided), decided])
    together = judge.own(several), judge.scores(several)
    with monkeypatch.context() as patch:
        patch.setattr("fusionkit.fit.train.evaluate.COUNTED", 1)
        assert (judge.own(several), judge.scores(several)) == together
    (scores,) = judge.scores(decided.unsqueeze(0))
    assert together[1][0] == together[1][2] == scores
    assert judge.metric == next(iter(scores)) == "f1"
    assert judge.own(decided.unsqueeze(0)) == [scores["f1"]]
    assert 0.1 < scores["f1"] < 0.9
    check_kept(judge, data, split, decided)


def test_words_without_a_row_count_as_the_default_tag(toy: Callable[..., TaskData]) -> None:
    data = toy(words=True)
    split = data.validation
    kept = np.ones(len(split.targets), dtype=bool)
    kept[::5] = False
    assert split.word_offsets is not None
    part = replace(split, kept=kept, targets=split.targets[kept], rows=split.rows[kept])
    judge = Evaluator(data, part)
    decided = torch.from_numpy(part.targets).unsqueeze(0)
    (own,), (scores,) = judge.own(decided), judge.scores(decided)
    assert own == pytest.approx(scores["accuracy"], abs=1e-12)
    assert own < 1.0


def test_numbers_are_judged_by_pearsons_correlation(toy: Callable[..., TaskData]) -> None:
    data = toy()
    gold = np.random.default_rng(0).normal(size=len(data.validation)).astype(np.float32)
    numeric = replace(data, task=TASKS["regression"], labels=[])
    split = replace(data.validation, targets=gold, gold=gold.tolist())
    judge = Evaluator(numeric, split)
    noisy = gold + np.random.default_rng(1).normal(size=len(gold)).astype(np.float32)
    assert judge.metric == "pearson"
    found = judge.own(torch.from_numpy(np.stack([noisy, gold])))
    assert found == pytest.approx([float(np.corrcoef(gold, noisy)[0, 1]), 1.0], abs=1e-6)
    check_kept(judge, numeric, split, torch.from_numpy(noisy))
