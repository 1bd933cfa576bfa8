"""Scores of predictions, as scikit-learn, SciPy and, for spans, seqeval define them.

All are from 0 to 1 (correlations from -1) and larger is better, except for those of :data:`LESS_IS_BETTER`.

Scores of classes are computed here: scikit-learn's functions take 4 ms per split and run, which is more than a run's
training where a GPU trains many runs at once; these take 0.02 ms. The tests compare them with scikit-learn's.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusionkit.tags import spans_of

if TYPE_CHECKING:
    from fusionkit.ragged import IntArray  # loads torch

LESS_IS_BETTER = ("perplexity", "cross_entropy")
CORRELATIONS = ("pearson", "spearman", "matthews")
NAMES = {
    "f1": "F1",
    "pearson": "Pearson's r",
    "spearman": "Spearman's ρ",
    "macro_f1": "macro F1",
    "positive_f1": "F1 of the positive class",
}
ROUNDING = 1e-12  # relative; means of equal scores differ by less
LARGEST_EXPONENT = 700.0  # e^710 overflows float64


def is_better(metric: str, score: float, best: float) -> bool:
    """Whether a score of this name beats the best so far."""
    return score < best if metric in LESS_IS_BETTER else score > best


def is_clearly_better(metric: str, mean: float, best: float) -> bool:
    """As :func:`is_better`, for means: one that differs from the best by rounding alone does not beat it.

    The mean of three equal scores can differ from the score in its last digit, and means of the same scores in another
    order from each other.
    """
    return is_better(metric, mean, best) and not math.isclose(mean, best, rel_tol=ROUNDING)


def is_share(metric: object) -> bool:
    """Whether a score of this name is a fraction, which tables show in percent; correlations count among them."""
    return metric not in LESS_IS_BETTER


def times_of(metric: object) -> float:
    """The factor that a score is shown with: 100 for shares, 1 for a perplexity or cross-entropy."""
    return 100.0 if is_share(metric) else 1.0


def stored_unit(metric: str | None) -> str | None:
    """The unit of a score in records, CSV and JSON; None without a metric."""
    units = {"perplexity": "perplexity", "cross_entropy": "nats"}
    return None if metric is None else units.get(metric, "fraction")


def metric_name(metric: str | None) -> str:
    """A metric as a paper writes it."""
    return NAMES.get(str(metric), str(metric).replace("_", " "))


def split_score(score: str, tasks: Iterable[str]) -> tuple[str | None, str]:
    """The task and the metric of a score of a run of several tasks: ``topic_f1`` → ``topic``, ``f1``. The task is None
    for a score of no single task, such as ``mean``.
    """
    # The longest name that fits: with tasks `a` and `a_b`, `a_b_f1` is a score of `a_b`.
    task = max((name for name in tasks if score.startswith(f"{name}_")), key=len, default=None)
    return task, score if task is None else score.removeprefix(f"{task}_")


def positive_scores(gold: IntArray, predicted: IntArray, positive: int) -> dict[str, float]:
    """The F1 of one class: ``2 n_kk / (t_k + p_k)`` with the symbols of :func:`class_scores`; 0 if it never occurs."""
    right = int(((gold == positive) & (predicted == positive)).sum())
    either = int((gold == positive).sum() + (predicted == positive).sum())
    return {"positive_f1": 2 * right / either if either else 0.0}


def class_scores(gold: IntArray, predicted: IntArray) -> dict[str, float]:
    """Accuracy, micro and macro F1 and Matthews' correlation of one label per example, from class numbers, ``[n]``.

        macro F1 = mean over classes of 2 n_kk / (t_k + p_k)
        Matthews = (n Σ n_kk − Σ t_k p_k) / √((n² − Σ p_k²) (n² − Σ t_k²))

    Symbols: ``n_kk`` right answers of class k; ``t_k`` how often k is the gold class, ``p_k`` how often it is
    predicted; n all answers. Macro F1 is over the classes in ``gold`` or ``predicted``, as in scikit-learn.
    Source: Gorodkin (2004) for the correlation of many classes.
    """
    count = len(gold)
    if not count:
        return {"accuracy": 0.0, "micro_f1": 0.0, "macro_f1": 0.0, "matthews": 0.0}
    classes = int(max(gold.max(), predicted.max())) + 1
    told, found = (np.bincount(side, minlength=classes) for side in (gold, predicted))
    right = np.bincount(gold[gold == predicted], minlength=classes)
    there = told + found > 0
    f1 = 2 * right[there] / (told + found)[there]
    accuracy = float(right.sum() / count)
    spread = float(count**2 - (found**2).sum()) * float(count**2 - (told**2).sum())
    return {
        "accuracy": accuracy,
        "micro_f1": accuracy,  # one label per example: an error is one false positive and one false negative
        "macro_f1": math.fsum(f1) / len(f1),  # fsum does not depend on the order of the classes
        # The correlation is undefined where one side has a single class; it counts as 0.
        "matthews": float(count * right.sum() - (told * found).sum()) / spread**0.5 if spread else 0.0,
    }


def span_scores(right: int, found: int, gold: int, word_accuracy: float) -> dict[str, float]:
    """Micro F1, precision and recall from the numbers of right, found and gold entities, with the words' accuracy; each
    of the first three is 0 if no entity is right.
    """
    return {
        "f1": 2 * right / (found + gold) if right else 0.0,
        "precision": right / found if right else 0.0,
        "recall": right / gold if right else 0.0,
        "word_accuracy": word_accuracy,
    }


class SpanCounts(NamedTuple):
    """Counts for each sentence, int64 ``[E]`` each: right, found and gold entities, right words and words."""

    right: IntArray
    found: IntArray
    gold: IntArray
    hits: IntArray
    words: IntArray


def span_counts(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> SpanCounts:
    """The counts of :func:`span_scores` for each sentence, from gold and predicted tags."""
    told, found = ([set(spans_of(tags)) for tags in side] for side in (gold, predicted))
    counts = (
        [len(one & other) for one, other in zip(told, found, strict=True)],
        [len(spans) for spans in found],
        [len(spans) for spans in told],
        [sum(a == b for a, b in zip(one, other, strict=True)) for one, other in zip(gold, predicted, strict=True)],
        [len(tags) for tags in gold],
    )
    return SpanCounts(*(np.array(each, dtype=np.int64) for each in counts))


def label_set_scores(right: IntArray, told: IntArray, found: IntArray, whole: int, examples: int) -> dict[str, float]:
    """Micro and macro F1 of any number of labels per example, and the share of examples whose labels are all right.

        micro F1 = 2 Σ_k r_k / Σ_k (t_k + p_k)        macro F1 = mean over k of 2 r_k / (t_k + p_k)

    Symbols: ``t_k`` examples that have label k, ``p_k`` those it is predicted for, ``r_k`` both. Macro F1 is over the
    labels with t_k + p_k > 0, as in :func:`class_scores`.

    Args:
        right, told, found: r_k, t_k and p_k, int64 ``[labels]``. whole: examples whose labels are all right. examples:
            all of them.
    """
    both = told + found
    each = 2 * right[both > 0] / both[both > 0]
    return {
        "micro_f1": float(2 * right.sum() / max(both.sum(), 1)),
        "macro_f1": math.fsum(each) / max(len(each), 1),  # fsum does not depend on the order of the labels
        "accuracy": whole / max(examples, 1),
    }


def joint_means(scores: Mapping[str, Mapping[str, float]], frame: float | None) -> dict[str, float]:
    """Scores of a run of several tasks, from the scores of each.

    ``mean`` is the mean of the tasks' own metrics, the first of each one's ``scores``. Each task's scores follow with
    its name in front, ``intent_accuracy``.

    Args:
        frame: the share of examples with all answers right (for a label and tags: sentence-level semantic frame
            accuracy, Goo et al. 2018); None for tasks without it.
    """
    return {
        "mean": sum(next(iter(each.values())) for each in scores.values()) / len(scores),
        **({} if frame is None else {"frame": frame}),
        **{f"{task}_{name}": value for task, each in scores.items() for name, value in each.items()},
    }


def number_scores(
    gold: Sequence[float] | NDArray[np.float64], predicted: Sequence[float] | NDArray[np.float64]
) -> dict[str, float]:
    """Pearson's and Spearman's correlation; 0 for fewer than two numbers, equal numbers, or one that is not finite."""
    from scipy import stats  # takes a second to import, and only tasks of numbers need it

    told, found = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if any(len(side) < 2 or not np.isfinite(side).all() or np.ptp(side) == 0 for side in (told, found)):
        return {"pearson": 0.0, "spearman": 0.0}
    with warnings.catch_warnings():
        # Nearly equal numbers give a correlation of rounding errors: it is a valid score, and users need no warning.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        return {
            "pearson": float(stats.pearsonr(told, found).statistic),
            "spearman": float(stats.spearmanr(told, found).statistic),
        }


def masked_scores(nats: NDArray[np.float64], hits: NDArray[np.bool_]) -> dict[str, float]:
    """Perplexity, mean cross-entropy in nats and accuracy of masked sub-tokens.

        perplexity = exp(mean over sub-tokens of −log p(its own id))

    Args:
        nats: of each its cross-entropy. hits: whether the likeliest id is its own.
    """
    surprise = float(np.mean(nats))
    surprise = surprise if np.isfinite(surprise) else np.finfo(np.float64).max
    return {
        "perplexity": float(np.exp(min(surprise, LARGEST_EXPONENT))),
        "cross_entropy": surprise,
        "accuracy": float(np.mean(hits)),
    }
