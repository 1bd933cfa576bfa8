"""The base of the estimators."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from fusionkit.dataset.draws import carve
from fusionkit.dataset.pooled import pooled_data
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.estimator.examples import ArrayExamples, example_split, examples_of, word_split
from fusionkit.fit.executor.units import pools_first
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.sweep.method_choices import usual_run
from fusionkit.fit.train.loop import train_run
from fusionkit.fit.train.result import RunResult
from fusionkit.fusions import fusion_layers, fusion_name, sees_examples
from fusionkit.heads import reads_sequences
from fusionkit.options.entry import options_of
from fusionkit.ragged import Ragged
from fusionkit.specs import FROZEN, RunSpec, parse_layers
from fusionkit.store import Split
from fusionkit.tasks import TASKS
from fusionkit.tasks.head_check import check_head

Given = Ragged | Split | ArrayLike
CHECKED = 1024  # rows whose numbers are checked at once


@dataclass(eq=False, repr=False)
class FusionEstimator(BaseEstimator):  # type: ignore[misc]
    """Reads X, trains a run; scikit-learn reads its parameters from the ``__init__`` that ``dataclass`` makes."""

    fusion: str = "attention"
    _: KW_ONLY
    head: str | None = None
    fusion_layers: str | None = None
    lr: float = 2e-3
    epochs: int | None = None
    max_steps: int | None = None
    batch_size: int = 32
    weight_decay: float | None = None
    dropout: float = 0.0
    optimizer: str = "adamw"
    schedule: str = "linear"
    warmup: float | None = None
    clip_norm: float | None = None
    validation_fraction: float | None = None
    patience: int | None = None
    random_state: Any = 0

    def _examples(self, X: Given, *, reset: bool) -> ArrayExamples:  # noqa: N803
        if isinstance(X, (Ragged, Split)):
            if isinstance(X, Split) and X.sides == 2:
                raise ValueError("X has two sequences an example: `fusionkit fit` reads such pairs, estimators do not")
            if len(X) == 0:
                raise ValueError("X holds no example: a minimum of 1 is required")
            # In pieces, because the check makes copies.
            pieces = torch.split(X.hidden_states, CHECKED) if isinstance(X, Ragged) else ()
            if not all(bool(rows.isfinite().all()) for rows in pieces):
                raise ValueError("X contains NaN or infinity.")
            examples = examples_of(X)
        elif getattr(X, "ndim", None) == 3 or (isinstance(X, list) and np.ndim(X) == 3):
            examples = examples_of(check_array(X, allow_nd=True, dtype=np.float32))
        else:
            table = validate_data(self, X, reset=reset, dtype=np.float32)
            examples = examples_of(table[:, None])
        _, layers, hidden = map(int, examples.states.shape)
        if reset:
            self.n_features_in_, self.n_layers_in_ = hidden, layers
        elif (layers, hidden) != (self.n_layers_in_, self.n_features_in_):
            raise ValueError(
                f"X has {layers} layers of {hidden} features, but {type(self).__name__} is expecting "
                f"{self.n_layers_in_} layers of {self.n_features_in_} features as input"
            )
        return examples

    def _to_predict(self, X: Given) -> TaskSplit:  # noqa: N803
        check_is_fitted(self)
        examples = self._examples(X, reset=False)
        if TASKS[self.spec_.task].unit == "word":
            return word_split(examples)
        return self._split(examples, self.spec_)

    def _split(self, examples: ArrayExamples, spec: RunSpec, *labels: Any) -> TaskSplit:
        """Examples with their targets and gold labels, if any, as the fusion and the head read them."""
        whole, unpooled = sees_examples(spec.fusion), reads_sequences(spec.head)
        return example_split(examples, spec.pool, whole, *labels, unpooled=unpooled)

    def _spec(self, task: str, examples: ArrayExamples) -> RunSpec:
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31 - 1)
        heads = TASKS[task].heads
        if self.head is not None:
            check_head(TASKS[task], self.head)
        pools = TASKS[task].unit == "example" and not reads_sequences(self.head or heads[0])
        if (pool := getattr(self, "pool", None)) is not None and not pools:
            raise ValueError(f"head={self.head!r} reads whole sequences and pools them itself: leave out pool={pool!r}")
        several = bool((np.diff(examples.row_offsets) != 1).any())
        # None is the default of a run, or of its method.
        own = {name: value for name, value in self.get_params(deep=False).items() if value is not None}
        method = getattr(self, "method", FROZEN)
        usual = {} if method == FROZEN else usual_run(method, self.optimizer)
        given = {**usual, **{name: value for name, value in own.items() if name in options_of(RunSpec)}}
        chosen = {
            "store": "",
            "task": task,
            "label": "y",
            "fusion": fusion_name(self.fusion),
            "head": self.head or heads[0],
            "pool": self.pool or ("mean" if several else None) if pools else None,
            "data_seed": int(seed),
            "init_seed": int(seed),
            "class_weights": getattr(self, "class_weight", None) or "none",
        }
        return RunSpec(**{**given, **chosen})

    def _train(self, spec: RunSpec, train: TaskSplit, labels: list[str], default: str = "") -> Self:
        data, layers = self._data(spec, train, labels, default), self._layers(spec)
        data = pooled_data(data) if pools_first(spec) else data  # as `fit` does
        return self._keep(spec, layers, train_run(spec, data, layers, self.n_features_in_, lambda: None), labels)

    def _data(self, spec: RunSpec, train: TaskSplit, labels: list[str], default: str = "") -> TaskData:
        """The training examples of a run, and the share that is held out for validation."""
        if self.patience is not None and self.validation_fraction is None:
            raise ValueError("patience needs examples to judge by: set validation_fraction too, for example to 0.1")
        stay, share = np.arange(len(train)), np.arange(0)
        if self.validation_fraction is not None:
            if not 0 < self.validation_fraction < 1 or len(train) < 2:
                raise ValueError(f"validation_fraction={self.validation_fraction} of {len(train)} examples leaves none")
            stay, share = carve(len(train), self.validation_fraction)
            if not len(stay):
                raise ValueError(f"validation_fraction={self.validation_fraction} of {len(train)} examples leaves none")
        task, validation = TASKS[spec.task], train.subset(share)
        if task.numeric and len(share) == 1:
            raise ValueError(
                f"validation_fraction={self.validation_fraction} of {len(train)} examples holds out 1: "
                "a correlation needs 2 or more"
            )
        train = train.subset(stay) if len(share) else train
        return TaskData(task, spec.label, spec.pool, labels, len(labels), default, train, validation, None)

    def _layers(self, spec: RunSpec) -> tuple[int, ...]:
        """The layers that the fusion reads."""
        count = self.n_layers_in_
        chosen = None if spec.fusion_layers is None else parse_layers(spec.fusion_layers, count, "fusion_layers")
        return fusion_layers(spec.fusion, tuple(range(count)), count, chosen)

    def _keep(self, spec: RunSpec, layers: tuple[int, ...], result: RunResult, labels: list[str]) -> Self:
        model = build_model(spec, len(layers), self.n_features_in_, len(labels))
        model.load_state_dict(result.weights)
        self.spec_, self.model_, self.layers_ = spec, model.eval().requires_grad_(False), layers
        self.n_iter_, self.best_iter_ = len(result.curve), result.best_epoch
        self.loss_curve_ = [epoch["loss"] for epoch in result.curve]
        self.validation_scores_ = (
            None if self.validation_fraction is None else [epoch["validation_score"] for epoch in result.curve]
        )
        self.layer_weights_ = None if result.layer_weights is None else np.array(result.layer_weights)
        return self

    def _targets(self, y: Any, *, numeric: bool = False) -> NDArray[Any]:
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        # Call this before X is read: it clears the names of X's columns.
        found: NDArray[Any] = validate_data(self, X="no_validation", y=y, y_numeric=numeric)
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags
