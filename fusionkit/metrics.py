"""Scores of predictions, all from 0 to 1 (correlations from -1): scikit-learn's, SciPy's and, for spans, seqeval's."""

from __future__ import annotations

import warnings
from itertools import chain

import numpy as np
from scipy import stats
from seqeval.metrics import f1_score as span_f1
from seqeval.metrics import precision_score as span_precision
from seqeval.metrics import recall_score as span_recall
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from fusionkit.tags import are_span_tags


def label_scores(gold: list[str], predicted: list[str], labels: list[str]) -> dict[str, float]:
    """Accuracy, micro and macro F1 and Matthews' correlation of one label an example.

    Macro F1 is over the labels that stand in ``gold`` or ``predicted``, as in scikit-learn, whatever ``labels``
    could be learned.
    """
    # One label throughout has no correlation; scikit-learn says 0 too, with a warning in the user's face.
    one = len({*gold, *predicted}) < 2
    return {
        "accuracy": float(accuracy_score(gold, predicted)),
        "micro_f1": float(f1_score(gold, predicted, average="micro", zero_division=0)),
        "macro_f1": float(f1_score(gold, predicted, average="macro", zero_division=0)),
        "matthews": 0.0 if one else float(matthews_corrcoef(gold, predicted)),
    }


def tag_scores(gold: list[list[str]], predicted: list[list[str]], labels: list[str]) -> dict[str, float]:
    """Scores of tagged sentences; ``labels``, the tags that could be learned, decide which.

    Span tags (BIO2): micro F1, precision and recall of whole entities as conlleval counts them, and the
    words' accuracy. Other tags, such as parts of speech: :func:`label_scores` over the words.
    """
    words_gold, words_predicted = list(chain.from_iterable(gold)), list(chain.from_iterable(predicted))
    if not are_span_tags(labels):
        return label_scores(words_gold, words_predicted, labels)
    return {
        "f1": float(span_f1(gold, predicted, zero_division=0)),
        "precision": float(span_precision(gold, predicted, zero_division=0)),
        "recall": float(span_recall(gold, predicted, zero_division=0)),
        "word_accuracy": float(accuracy_score(words_gold, words_predicted)),
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
