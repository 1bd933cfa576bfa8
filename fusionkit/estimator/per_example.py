"""The estimators with a label or a number per example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from fusionkit.dataset.split import TaskSplit
from fusionkit.estimator.base import FusionEstimator, Given
from fusionkit.estimator.examples import ArrayExamples, examples_of, scores_of
from fusionkit.specs import FROZEN, RunSpec


@dataclass(eq=False, repr=False)
class FusionClassifier(ClassifierMixin, FusionEstimator):  # type: ignore[misc]
    """One label per example, decided by softmax over the fused and pooled states.

    Args:
        fusion: with its options, like ``dwatt:scale=yes``. fusion_layers: the layers it reads, like ``"0,3,6"``.
        head: ``classifier``, ``linear-classifier``, or ``bcn``, which pools by itself.
        pool: how several rows become one vector: ``cls``, ``last``, ``mean`` or ``max``; None takes the only
            row, or the mean.
        lr, epochs, max_steps, batch_size, dropout: as in :class:`~fusionkit.specs.RunSpec`.
        optimizer, schedule, clip_norm, label_smoothing: the same. class_weight: ``balanced`` or None.
        epochs, weight_decay, warmup: None takes 10, 0 and 0, or the method's own.
        method: what is trained of the encoder, like ``full`` or ``houlsby:64`` (:mod:`fusionkit.methods`). Any but
            ``frozen`` reads texts: X is then a list of texts, and ``encoder`` names what reads them (``minilm``, a
            folder, a hub id). encoder_lr: the rate of all that the method trains; None takes the method's own.
        device: where such a method is trained: cpu, cuda or auto.
        validation_fraction: share of the examples held out to choose the best epoch; None keeps the last epoch.
        patience: epochs without a better validation score after which training stops.
        random_state: seed of the order, the weights and dropout; ``fusionkit fit``'s data and init seed.

    Attributes:
        classes_: the classes, in NumPy's order. n_features_in_: width of a layer. n_layers_in_: layers of X.
        layers_: those that the fusion reads. layer_weights_: mean weight of each, None where the fusion has none.
        model_: fusion and head. n_iter_: epochs trained. best_iter_: the epoch kept, from 1.
        loss_curve_: mean loss by epoch. validation_scores_: accuracy by epoch. spec_: the run. encoder_: the encoder
        with what a method trained; pickle keeps what was trained alone, and loads the encoder again. delta_: what was
        trained, by name.

    Example:
        >>> from sklearn.model_selection import cross_val_score
        >>> train = store["train"]                                                   # doctest: +SKIP
        >>> cross_val_score(FusionClassifier("linear"), train, train.examples["label"])  # doctest: +SKIP
    """

    pool: str | None = None
    label_smoothing: float = 0.0
    class_weight: str | None = None
    method: str = FROZEN
    encoder: str | None = None
    encoder_lr: float | None = None
    device: str = "cpu"

    def fit(self, X: Given, y: ArrayLike) -> Self:  # noqa: N803
        """Train on examples and their labels, ``[examples]``.

        Raises:
            ValueError: as scikit-learn's estimators do. UsageError: an option that does not exist or fit.
        """
        for left in ("encoder_", "delta_"):  # of an earlier fit with another method
            self.__dict__.pop(left, None)
        if not isinstance(self.class_weight, (str, type(None))):
            raise ValueError(f"class_weight is 'balanced' or None, not {self.class_weight!r}")
        y = self._targets(y)
        check_classification_targets(y)
        if self.method != FROZEN:
            return self._fit_texts(X, y)
        if texts_of(X) is not None:
            raise ValueError(
                "X holds texts, which a frozen encoder reads once: encode them (`fusionkit encode`) and give the "
                "store's split as X, or name a method that trains the encoder (method='full')"
            )
        for name, usual in (("encoder", None), ("encoder_lr", None), ("device", "cpu")):
            if (given := getattr(self, name)) != usual:
                raise ValueError(
                    f"{name}={given!r} is for a method that trains the encoder, like method='full': leave it out"
                )
        examples = self._examples(X, reset=True)
        spec, split, labels = self._learned(examples, y)
        return self._train(spec, split, labels)

    def _learned(self, examples: ArrayExamples, y: Any) -> tuple[RunSpec, TaskSplit, list[str]]:
        """The spec of the run, the examples with their targets, and the names of the classes."""
        check_consistent_length(range(len(examples)), y)
        self.classes_, targets = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs two classes or more; y holds 1 class")
        labels = [str(label) for label in self.classes_]
        spec = self._spec("classification", examples)
        return spec, self._split(examples, spec, targets.astype(np.int64), [labels[k] for k in targets]), labels

    def _fit_texts(self, X: Given, y: Any) -> Self:  # noqa: N803
        """Train through the encoder."""
        from fusionkit.encoder import load_encoder  # loads transformers, like the next one
        from fusionkit.estimator.from_texts import planned, train_on_texts, with_room

        if (texts := texts_of(X)) is None or self.encoder is None:
            raise ValueError(
                f"method={self.method!r} trains through the encoder: X is a list of texts, one or more, and `encoder` "
                f"names what reads them; got {type(X).__name__} and encoder={self.encoder!r}"
            )
        encoder = load_encoder(self.encoder, device=self.device)
        self.n_features_in_, self.n_layers_in_ = encoder.hidden, encoder.layers
        with planned(texts, with_room(encoder, self.method)) as store:
            spec, split, labels = self._learned(examples_of(store["train"]), y)
            data, layers = self._data(spec, split, labels), self._layers(spec)
            result, self.encoder_ = train_on_texts(encoder, spec, data, store)
        self.delta_ = result.delta
        self._keep(spec, layers, result, labels)
        self.model_.to(self.encoder_.device)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if (encoder := state.pop("encoder_", None)) is not None:  # its hooks cannot be pickled
            state["identity_"] = encoder.identity
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != "identity_"})
        if (identity := state.get("identity_")) is not None:
            from fusionkit.encoder import load_encoder
            from fusionkit.estimator.from_texts import with_delta
            from fusionkit.store.same_encoder import refuse_other_encoder

            assert self.encoder is not None
            encoder = load_encoder(self.encoder, device=self.device)
            what = f"{self.encoder} is not the encoder that this estimator was trained with"
            refuse_other_encoder(encoder.identity, identity, what, "put that encoder back")
            self.encoder_ = with_delta(encoder, self.spec_, self.delta_)

    def _to_predict(self, X: Given) -> TaskSplit:  # noqa: N803
        check_is_fitted(self)
        if self.spec_.is_frozen:
            return super()._to_predict(X)
        from fusionkit.estimator.from_texts import live_examples

        if (texts := texts_of(X)) is None:
            raise ValueError(f"X is a list of texts, as in training; got {type(X).__name__}")
        return self._split(live_examples(texts, self.encoder_), self.spec_)

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
    """One number per example, trained by the squared error on the unscaled numbers.

    Args:
        head: ``regressor`` or ``linear-regressor``. All others as in :class:`FusionClassifier` over stored states.

    Attributes:
        validation_scores_: Pearson's correlation by epoch. All others as in :class:`FusionClassifier`.
    """

    pool: str | None = None

    def fit(self, X: Given, y: ArrayLike) -> Self:  # noqa: N803
        """Train on examples and their numbers, ``[examples]``; errors as in :meth:`FusionClassifier.fit`."""
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


def texts_of(given: Any) -> list[str] | None:
    """A list, array or column of texts as a list; None for anything else."""
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        return None
    if not isinstance(given, (list, tuple)) and getattr(given, "ndim", None) != 1:
        return None
    found = list(given)
    return found if found and all(isinstance(each, str) for each in found) else None
