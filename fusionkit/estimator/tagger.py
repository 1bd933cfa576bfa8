"""The estimator with a tag per row of each example."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
from sklearn.utils import check_consistent_length

from fusionkit.dataset.task_data import TaskData
from fusionkit.estimator.base import FusionEstimator, Given
from fusionkit.estimator.examples import word_split
from fusionkit.fit.train.decisions import predict
from fusionkit.statistics.kept_answers import answers_of
from fusionkit.tags import are_span_tags
from fusionkit.tasks import TASKS
from fusionkit.tasks.label_column import has_label


@dataclass(eq=False, repr=False)
class FusionTagger(FusionEstimator):
    """One tag per row. Rows are words, as of ``encode --rows words``; a row without a state has the default tag.

    Args:
        head: ``tagger``, ``linear-tagger``, ``crf`` or ``bilstm-crf``. All others as in :class:`FusionClassifier` over
            stored states, without ``pool``.

    Attributes:
        classes_: tags that may be answered. default_: the tag given to rows without a state. validation_scores_: by
            epoch, F1 of spans where the tags are BIO tags, else accuracy. All others as in :class:`FusionClassifier`.
    """

    label_smoothing: float = 0.0
    class_weight: str | None = None

    def fit(self, X: Given, y: Any) -> Self:  # noqa: N803
        """Train on examples and their tags: a sequence of sequences, one tag per row.

        Raises:
            ValueError: the tags do not fit the rows. UsageError: an option that does not exist or fit.
        """
        examples = self._examples(X, reset=True)
        gold = _tags_of(y, np.diff(examples.row_offsets).tolist())
        flat = list(chain.from_iterable(gold))
        self.classes_, targets, counts = np.unique(np.array(flat, dtype=str), return_inverse=True, return_counts=True)
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs two tags or more; y holds {len(self.classes_)}")
        labels = self.classes_.tolist()
        self.default_ = "O" if are_span_tags(labels) else labels[counts.argmax()]
        split = word_split(examples, targets.astype(np.int64), gold)
        return self._train(self._spec("tagging", examples), split, labels, self.default_)

    def predict(self, X: Given) -> list[list[str]]:  # noqa: N803
        """The tags of each example, one per row."""
        split = self._to_predict(X)
        labels = self.classes_.tolist()
        data = TaskData(TASKS["tagging"], "y", None, labels, len(labels), self.default_, split, split, None)
        return predict(self.model_, data, split, self.layers_)

    def score(self, X: Given, y: Any) -> float:  # noqa: N803
        """F1 of spans where the tags learned are BIO tags, else the words' accuracy; ``y`` is as in :meth:`fit`."""
        found = self.predict(X)
        gold = _tags_of(y, [len(tags) for tags in found])
        scores = answers_of(TASKS["tagging"], gold, found, self.classes_.tolist()).scores()
        return next(iter(scores.values()))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False  # a table has no words
        tags.target_tags.required = True
        return tags


def _tags_of(y: Any, counts: list[int]) -> list[list[str]]:
    """The tags of each example; ``counts`` are the rows of each."""
    if y is None:
        raise ValueError("FusionTagger requires y to be passed, but the target y is None.")
    check_consistent_length(counts, y)
    gold = list[list[str]]()
    for example, tags in enumerate(y):
        told = list(tags) if np.iterable(tags) and not isinstance(tags, str) else [tags]
        for row, tag in enumerate(told):
            if not has_label(tag):
                raise ValueError(f"example {example}, row {row} has no tag: {tag!r}")
        gold.append(list(map(str, told)))
    for example, tags in enumerate(gold):
        if len(tags) != counts[example]:
            raise ValueError(
                f"example {example} has {counts[example]} rows and {len(tags)} tags: "
                "give one tag a row, over rows of words"
            )
    return gold
