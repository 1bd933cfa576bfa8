"""Scores of predictions: scikit-learn's, SciPy's and, for spans, seqeval's.

All are from 0 to 1 (correlations from -1) and the larger the better, but for those of :data:`LESS_IS_BETTER`.
"""

from __future__ import annotations

import warnings
from itertools import chain

import numpy as np
from scipy import stats
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support as span_scores
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from fusionkit.tags import are_span_tags

LESS_IS_BETTER = ("perplexity", "cross_entropy")
LARGEST_EXPONENT = 700.0  # e^710 is no number any more


def is_better(metric: str, score: float, best: float) -> bool:
    """Whether a score of this name beats the best so far."""
    return score < best if metric in LESS_IS_BETTER else score > best


def label_scores(gold: list[str], predicted: list[str], labels: list[str]) -> dict[str, float]:
    """Accuracy, micro and macro F1 and Matthews' correlation of one label an example.

    Macro F1 is over the labels that stand in ``gold`` or ``predicted``, as in scikit-learn, whatever ``labels``
    could be learned.
    """
    # Numbers instead of names: scikit-learn looks at every name in every score. Micro F1 of one label an example is the
    # accuracy: each error is one false positive and one false negative.
    _, numbers = np.unique([*gold, *predicted], return_inverse=True)
    told, found = numbers[: len(gold)], numbers[len(gold) :]
    accuracy = float(accuracy_score(told, found))
    # One label throughout has no correlation; scikit-learn says 0 too, with a warning in the user's face.
    one = numbers.size == 0 or numbers.max() == 0
    return {
        "accuracy": accuracy,
        "micro_f1": accuracy,
        "macro_f1": float(f1_score(told, found, average="macro", zero_division=0)),
        "matthews": 0.0 if one else float(matthews_corrcoef(told, found)),
    }


def tag_scores(gold: list[list[str]], predicted: list[list[str]], labels: list[str]) -> dict[str, float]:
    """Scores of tagged sentences; ``labels``, the tags that could be learned, decide which.

    Span tags (BIO2): micro F1, precision and recall of whole entities as conlleval counts them, and the
    words' accuracy. Other tags, such as parts of speech: :func:`label_scores` over the words.
    """
    words_gold, words_predicted = list(chain.from_iterable(gold)), list(chain.from_iterable(predicted))
    if not are_span_tags(labels):
        return label_scores(words_gold, words_predicted, labels)
    precision, recall, f1, _ = span_scores(gold, predicted, average="micro", zero_division=0)
    _, numbers = np.unique([*words_gold, *words_predicted], return_inverse=True)
    return {
        "f1": float(f1),
        "precision": float(precision),
        "recall": float(recall),
        "word_accuracy": float(accuracy_score(numbers[: len(words_gold)], numbers[len(words_gold) :])),
    }


def joint_scores(
    gold: list[tuple[str, list[str]]], predicted: list[tuple[str, list[str]]], labels: list[str]
) -> dict[str, float]:
    """Scores of intents with their slots, ``(label, tags)`` an example; ``labels`` are the tags that could be learned.

    ``mean`` is that of the two tasks' own metrics, accuracy and F1 (or accuracy, where tags mark no spans); ``frame``
    the share of examples whose label and tags are all right (sentence-level semantic frame accuracy, Goo et al. 2018);
    then :func:`label_scores` as ``intent_…`` and :func:`tag_scores` as ``slots_…``.
    """
    right = [one == other for one, other in zip(gold, predicted, strict=True)]
    intents = label_scores([label for label, _ in gold], [label for label, _ in predicted], [])
    slots = tag_scores([tags for _, tags in gold], [tags for _, tags in predicted], labels)
    return {
        "mean": (next(iter(intents.values())) + next(iter(slots.values()))) / 2,
        "frame": sum(right) / max(len(right), 1),
        **{f"intent_{name}": value for name, value in intents.items()},
        **{f"slots_{name}": value for name, value in slots.items()},
    }


def number_scores(gold: list[float], predicted: list[float], labels: list[str]) -> dict[str, float]:
    """Pearson's and Spearman's correlation of numbers.

    0 where there is none: fewer than two numbers, the same number throughout, or one that is not finite.
    """
    told, found = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if any(len(side) < 2 or not np.isfinite(side).all() or np.ptp(side) == 0 for side in (told, found)):
        return {"pearson": 0.0, "spearman": 0.0}
    with warnings.catch_warnings():
        # Nearly the same number throughout: a correlation of rounding, which is a score and no news to the user.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        return {
            "pearson": float(stats.pearsonr(told, found).statistic),
            "spearman": float(stats.spearmanr(told, found).statistic),
        }


def language_model_scores(gold: list[int], predicted: list[tuple[float, int]], labels: list[str]) -> dict[str, float]:
    """Perplexity, mean cross-entropy in nats and accuracy of masked sub-tokens.

        perplexity = exp(mean over sub-tokens of −log p(its own id))

    Args:
        gold: the ids. predicted: of each the cross-entropy, and the likeliest id.
    """
    surprise = float(np.mean([nats for nats, _ in predicted]))
    surprise = surprise if np.isfinite(surprise) else np.finfo(np.float64).max
    hits = np.mean([best == wanted for (_, best), wanted in zip(predicted, gold, strict=True)])
    return {
        "perplexity": float(np.exp(min(surprise, LARGEST_EXPONENT))),
        "cross_entropy": surprise,
        "accuracy": float(hits),
    }
