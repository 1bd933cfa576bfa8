"""Predictions of trained runs for each example of the split they are scored on, and the layer weights of each row.

The store of a run must still exist. Each task and method is shown by one run: the one with the best validation score
among those that validation chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionkit.dataset.mixture import Mix
from fusionkit.dataset.share import Share
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import FusionkitError
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.loader.minibatches import Layers
from fusionkit.fit.model.checkpoint import open_run
from fusionkit.fit.model.fused import FusedModel
from fusionkit.fit.train.decisions import predict_parts
from fusionkit.fit.train.layer_weights import row_weights
from fusionkit.metrics import is_better
from fusionkit.ragged import IntArray
from fusionkit.report.report_data import ReportData
from fusionkit.report.texts import Texts
from fusionkit.runs.folder import layer_weights_of
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.store.layer_positions import positions_of
from fusionkit.tags import are_span_tags

MOST = 40  # runs that are looked at
NO_LABEL = "none"  # what an example without any of several labels is shown as


@dataclass(frozen=True, eq=False)
class RunPredictions:
    """One head of one run over one split.

    Attributes:
        digest: the run's. task, method: as the report names them. column: what it answers.
        kind: ``spans``, ``tags``, ``class`` or ``number``. split: the name of the examples' split.
        layers: the encoder's layers that the fusion reads.
        gold, predicted: a label, a number or a list of tags an example.
        tokens: an example's words or rows as text. whole: an example's text, where a row stands for all of it.
        weights: ``[rows, layers]``, or None where the fusion has none. offsets: int64 ``[examples + 1]`` into them.
        has_row: bool a token, whether it has a row of weights.
    """

    digest: str
    task: str
    method: str
    column: str
    kind: str
    split: str
    layers: tuple[int, ...]
    gold: list[Any]
    predicted: list[Any]
    tokens: list[list[str]]
    whole: list[str] | None
    weights: NDArray[np.float32] | None
    offsets: IntArray
    has_row: list[NDArray[np.bool_]]

    def row_labels(self) -> list[str]:
        """The gold label of each row: its word's tag, or its example's label."""
        found: list[str] = []
        for gold, has in zip(self.gold, self.has_row, strict=True):
            tags = gold if isinstance(gold, list) else [str(gold)] * len(has)
            found += [tag for tag, ok in zip(tags, has, strict=True) if ok]
        return found


@dataclass
class AllPredictions:
    """The predictions of a report's runs, made when asked for. Attributes: left_out: what cannot be shown, and why."""

    study: ReportData
    most: int = MOST
    left_out: list[str] = field(default_factory=list)

    @cached_property
    def all(self) -> list[RunPredictions]:
        """Every look, task by task, the methods in their order."""
        gone: dict[str, int] = {}
        found: list[RunPredictions] = []
        context: dict[Any, SweepContext] = {}
        for digest, task, method in self._wanted():
            try:
                found += look_at(self.study, digest, task, method, context)
            except FusionkitError as error:
                gone[error.what] = gone.get(error.what, 0) + 1
        self.left_out += [f"{what} ({count} run{'s' if count > 1 else ''})" for what, count in gone.items()]
        return found

    def _wanted(self) -> list[tuple[str, str, str]]:
        runs = self.study.whole
        runs = runs[runs["task"] != "mlm"]
        by_task: dict[str, list[tuple[str, str, str]]] = {task: [] for task in dict.fromkeys(runs["task_name"])}
        for (task, method), group in runs.groupby(["task_name", "method"], sort=False):
            best = None
            for digest, metric, value in group[["digest", "metric", "validation_score"]].itertuples(index=False):
                if best is None or is_better(metric, value, best[1]):
                    best = digest, value
            assert best is not None
            by_task[str(task)].append((best[0], str(task), str(method)))
        order = {method: place for place, method in enumerate(self.study.methods)}
        for task, listed in by_task.items():
            # Fusions with weights first: these are what a look is for.
            listed.sort(key=lambda one: (not _has_weights(self.study.records[one[0]]), order[one[2]]))
            by_task[task] = listed
        rounds = max((len(listed) for listed in by_task.values()), default=0)
        turns = [listed[k] for k in range(rounds) for listed in by_task.values() if k < len(listed)]
        if len(turns) > self.most:
            self.left_out.append(f"the look inside has {self.most} runs of {len(turns)} tasks and methods")
        kept = set(turns[: self.most])
        return [one for listed in by_task.values() for one in listed if one in kept]


def look_at(
    study: ReportData, digest: str, task: str, method: str, context: dict[Any, SweepContext] | None = None
) -> list[RunPredictions]:
    """The predictions of a run, one object for each column that it answers.

    Args:
        context: task data that other runs have loaded, by store.

    Raises:
        FusionkitError: its store is gone, or its weights are damaged.
    """
    context = {} if context is None else context
    spec = RunSpec.from_dict(study.records[digest]["spec"])
    key = (spec.store, spec.mix, spec.evaluate_on)
    if key not in context:
        context[key] = SweepContext(_source(study, spec))
    made = context[key]
    # The report needs no draw and no start: only the split that is scored.
    data = made.data(spec)
    folder = Path(str(study.frame.loc[study.frame["digest"] == digest, "folder"].iloc[0])) / digest
    run = open_run(folder)
    split, name = (data.validation, "validation") if data.test is None else (data.test, "test")
    layers = positions_of(run.layers, made.store.layers)
    answers = predict_parts(run.whole, data, split, layers)
    store = made.store.evaluation_stores[0] if isinstance(made.store, Mix) else made.store
    texts = Texts(store, name if name in store.splits else "train")
    return [
        _look(
            digest,
            task,
            method,
            name,
            data.parts[part],
            own,
            answers[part],
            run.whole.parts[part],
            layers,
            run.layers,
            texts,
        )
        for part, own in split.parts.items()
    ]


def _look(
    digest: str, task: str, method: str, split_name: str, data: TaskData, split: TaskSplit, said: list[Any],
    model: FusedModel, positions: Layers, layers: tuple[int, ...], texts: Texts,
) -> RunPredictions:  # fmt: skip
    words = split.kept is not None and split.word_offsets is not None
    kind = "number" if data.task.numeric else "class"
    if words:
        kind = "spans" if are_span_tags(data.labels) else "tags"
    gold = split.gold
    if data.task.several:
        gold, said = ([" + ".join(labels) or NO_LABEL for labels in side] for side in (gold, said))
    weights = row_weights(model, split, positions)
    offsets = split.read_offsets[:: split.sides]
    rows = split.rows if split.read is None else split.rows[split.read]
    if split.kept is not None and split.word_offsets is not None:
        bounds = split.word_offsets.tolist()
        has_row = [split.kept[start:stop] for start, stop in pairwise(bounds)]
        # An example's words are those of the sequence that its first row lies in; without any row it has no text.
        tokens = [
            texts.words_of(rows[start], len(has)) if stop > start else ["?"] * len(has)
            for start, stop, has in zip(offsets, offsets[1:], has_row, strict=False)
        ]
        whole = None
    else:
        tokens = [texts.rows(rows[start:stop]) for start, stop in pairwise(offsets)]
        has_row = [np.ones(len(one), dtype=bool) for one in tokens]
        whole = [texts.whole(rows[start:stop]) for start, stop in pairwise(offsets)]
    return RunPredictions(
        digest, task, method, data.label, kind, split_name, layers, list(gold), said, tokens, whole, weights,
        offsets, has_row,
    )  # fmt: skip


def _source(study: ReportData, spec: RunSpec) -> Store | Mix:
    def one(digest: str) -> Store:
        store = study.stores.get(digest)
        if store is None:
            raise FusionkitError(f"the store {digest} is not there")
        return store

    if spec.mix is None and spec.evaluate_on is None:
        return one(spec.store)
    parts = [part.partition(":") for part in (spec.mix or spec.store).split(",")]
    shares = [Share(one(digest), part or None) for digest, _, part in parts]
    return Mix(shares, [one(digest) for digest in (spec.evaluate_on or "").split(",") if digest])


def _has_weights(record: dict[str, Any]) -> bool:
    return any(weights is not None for weights in layer_weights_of(record).values())


def validation_of(study: ReportData, look: RunPredictions) -> float:
    """The validation score of a run that is looked at, the larger the better: perplexities are not looked at."""
    return float(study.records[look.digest]["validation_score"])


def sample(look: RunPredictions, rows: int, examples: int, seed: int = 0) -> list[int]:
    """At most so many examples drawn at random whose rows are at most so many together, in their order.

    The same for equal seeds, and those of fewer rows are among those of more.
    """
    order = np.random.default_rng(seed).permutation(len(look.gold))[:examples]
    sizes = np.array([max(len(tokens), 1) for tokens in look.tokens], dtype=np.int64)[order]
    return sorted(order[: int(np.searchsorted(np.cumsum(sizes), rows, side="right"))].tolist())


def confusion(look: RunPredictions) -> list[tuple[str, str, int]]:
    """``(gold, predicted, count)`` over all examples or words; of a number there is none."""
    if look.kind == "number":
        return []
    counts: dict[tuple[str, str], int] = {}
    for gold, said in zip(look.gold, look.predicted, strict=True):
        for one, other in zip(*((gold, said) if isinstance(gold, list) else ([gold], [said])), strict=True):
            counts[one, other] = counts.get((one, other), 0) + 1
    return [(one, other, count) for (one, other), count in sorted(counts.items())]


def label_weights(look: RunPredictions) -> dict[str, tuple[int, Sequence[float]]]:
    """By gold label how many rows there are and their mean weights; of span tags the entity type counts."""
    if look.weights is None or look.kind == "number":
        return {}
    labels = np.array([name[2:] if look.kind == "spans" and name != "O" else name for name in look.row_labels()])
    return {
        str(name): (int((labels == name).sum()), look.weights[labels == name].mean(0).tolist())
        for name in np.unique(labels)
    }
