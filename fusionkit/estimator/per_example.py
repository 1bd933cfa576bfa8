"""A label or a number for each example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.multiclass import check_classification_targets

from fusionkit.estimator.base import FusionEstimator, Given
from fusionkit.fit.train.arrays import scores_of


@dataclass(eq=False, repr=False)
class FusionClassifier(ClassifierMixin, FusionEstimator):  # type: ignore[misc]
    """One label an example, decided by softmax over the fused and pooled states.

    Args:
        fusion: with its options, like ``dwatt:scale=yes``. fusion_layers: the layers it reads, like ``"0,3,6"``.
        head: ``classifier``, or ``bcn``, which pools by itself.
        pool: how several rows become one vector: ``cls``, ``last``, ``mean`` or ``max``; None takes the only
            row, or the mean.
        lr, epochs, max_steps, batch_size, weight_decay, dropout: as :class:`~fusionkit.specs.RunSpec` has them.
        optimizer, schedule, warmup, clip_norm, label_smoothing: the same. class_weight: ``balanced`` or None.
        validation_fraction: share of the examples that the best epoch is chosen by; None keeps the last.
        patience: epochs without a better validation score after which training stops.
        random_state: seed of the order, the weights and dropout; ``fusionkit fit``'s data and init seed.

    Attributes:
        classes_: the classes, in NumPy's order. n_features_in_: width of a layer. n_layers_in_: layers of X.
        layers_: those that the fusion reads. layer_weights_: mean weight of each, None where the fusion has none.
        model_: fusion and head. n_iter_: epochs trained. best_iter_: the one that was kept, from 1.
        loss_curve_: mean loss by epoch. validation_scores_: accuracy by epoch. spec_: the run.

    Example:
        >>> from sklearn.model_selection import cross_val_score
        >>> train = store["train"]                                                   # doctest: +SKIP
        >>> cross_val_score(FusionClassifier("linear"), train, train.examples["label"])  # doctest: +SKIP
    """

    pool: str | None = None
    label_smoothing: float = 0.0
    class_weight: str | None = None

    def fit(self, X: Given, y: ArrayLike) -> Self:  # noqa: N803
        """Train on examples and their labels, ``[examples]``.

        Raises:
            ValueError: as scikit-learn's estimators do. UsageError: an option that does not exist or fit.
        """
        if not isinstance(self.class_weight, (str, type(None))):
            raise ValueError(f"class_weight is 'balanced' or None, not {self.class_weight!r}")
        y = self._targets(y)
        check_classification_targets(y)
        examples = self._examples(X, reset=True)
        check_consistent_length(range(len(examples)), y)
        self.classes_, targets = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs two classes or more; y holds 1 class")
        labels = [str(label) for label in self.classes_]
        spec = self._spec("classification", examples)
        split = self._split(examples, spec, targets.astype(np.int64), [labels[k] for k in targets])
        return self._train(spec, split, labels)

    def predict_proba(self, X: Given) -> NDArray[np.float32]:  # noqa: N803
        """The probability of each class, float32 ``[examples, classes]``, in the order of ``classes_``."""
        split = self._to_predict(X)
        found: NDArray[np.float32] = scores_of(self.model_, split, self.layers_).softmax(-1).numpy()
        return found

    def predict(self, X: Given) -> NDArray[Any]:  # noqa: N803
        """The likeliest class of each example."""
        best = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[best]
        return found


@dataclass(eq=False, repr=False)
class FusionRegressor(RegressorMixin, FusionEstimator):  # type: ignore[misc]
    """One number an example, trained by the squared error on the numbers as they stand.

    Args:
        head: ``regressor``. All others as :class:`FusionClassifier` has them.

    Attributes:
        validation_scores_: Pearson's correlation by epoch. All others as :class:`FusionClassifier` has them.
    """

    pool: str | None = None

    def fit(self, X: Given, y: ArrayLike) -> Self:  # noqa: N803
        """Train on examples and their numbers, ``[examples]``; errors as of :meth:`FusionClassifier.fit`."""
        numbers = self._targets(y, numeric=True).astype(np.float64)
        examples = self._examples(X, reset=True)
        check_consistent_length(range(len(examples)), numbers)
        spec = self._spec("regression", examples)
        return self._train(spec, self._split(examples, spec, numbers.astype(np.float32), numbers.tolist()), [])

    def predict(self, X: Given) -> NDArray[np.float32]:  # noqa: N803
        """The number of each example, float32 ``[examples]``."""
        split = self._to_predict(X)
        found: NDArray[np.float32] = scores_of(self.model_, split, self.layers_).squeeze(1).numpy()
        return found
