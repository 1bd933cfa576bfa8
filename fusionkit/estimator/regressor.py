"""A number for each example."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_consistent_length

from fusionkit.estimator.base import FusionEstimator, Given
from fusionkit.fit.train.arrays import scores_of


class FusionRegressor(RegressorMixin, FusionEstimator):  # type: ignore[misc]
    """One number an example, trained by the squared error on the numbers as they stand.

    Args:
        head: ``regressor``. All others as :class:`FusionClassifier` has them.

    Attributes:
        validation_scores_: Pearson's correlation by epoch. All others as :class:`FusionClassifier` has them.
    """

    def __init__(
        self,
        fusion: str = "attention",
        *,
        head: str | None = None,
        fusion_layers: str | None = None,
        pool: str | None = None,
        lr: float = 2e-3,
        epochs: int = 10,
        max_steps: int | None = None,
        batch_size: int = 32,
        weight_decay: float = 0.0,
        dropout: float = 0.0,
        optimizer: str = "adamw",
        schedule: str = "linear",
        warmup: float = 0.0,
        clip_norm: float | None = None,
        validation_fraction: float | None = None,
        patience: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.fusion = fusion
        self.head = head
        self.fusion_layers = fusion_layers
        self.pool = pool
        self.lr = lr
        self.epochs = epochs
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.optimizer = optimizer
        self.schedule = schedule
        self.warmup = warmup
        self.clip_norm = clip_norm
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state

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
