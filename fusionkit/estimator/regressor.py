"""A number for each example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_consistent_length

from fusionkit.estimator.base import FusionEstimator, Given
from fusionkit.fit.train.arrays import scores_of


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
        """Train on examples and their numbers, ``[examples]``.

        Raises:
            ValueError: as scikit-learn's estimators do. UsageError: an option that does not exist or fit.
        """
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
