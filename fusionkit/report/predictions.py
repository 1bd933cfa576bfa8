"""Predictions of trained runs for each example of the split they are scored on, and the layer weights of each row.

The store of a run must still exist. Each task and method is shown by one run: the best by validation score of those
that validation chose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionkit.dataset.mixture import Mix
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.stores import Stores, source_of
from fusionkit.dataset.task_data import TaskData
from fusionkit.dataset.task_stores import TaskStores
from fusionkit.errors import FusionkitError
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.model.checkpoint import TrainedRun, open_run
from fusionkit.fit.train.decisions import predict_parts
from fusionkit.fit.train.layer_weights import row_weights
from fusionkit.names import MEAN
from fusionkit.plural import counted
from fusionkit.ragged import IntArray
from fusionkit.report.display_names import of_own_stores, own_metric
from fusionkit.report.report_data import ReportData
from fusionkit.report.texts import Texts
from fusionkit.runs.record import layer_weights_of
from fusionkit.runs.records_file import TAKEN_FROM
from fusionkit.specs import RunSpec
from fusionkit.statistics.kept_answers import CLASS, kind_of
from fusionkit.store import Store
from fusionkit.store.layer_positions import positions_of

MOST = 40  # runs whose predictions are shown
NO_LABEL = "none"  # shown for an example without a label, where examples can have several


@dataclass(frozen=True, eq=False)
class RunPredictions:
    """One head of one run over one split.

    Attributes:
        digest: the run's. task, method: as the report names them. column: the label column that it predicts.
        scored: ``metric``, ``score`` and ``validation_score`` of the run, or of the task if it is over a store of its
            own.
        kind: ``spans``, ``tags``, ``class`` or ``number``. split: the name of the examples' split.
        layers: the encoder's layers that the fusion reads.
        gold, predicted: per example a label, a number or a list of tags.
        tokens: per example its words or rows as text. whole: per example its text; None where words are tagged.
        weights: ``[rows, layers]``, or None where the fusion has none. offsets: int64 ``[examples + 1]`` into them.
        has_row: per example a bool per token, whether it has a row of weights.
    """

    digest: str
    task: str
    method: str
    column: str
    scored: Mapping[str, Any]
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


class AllPredictions(NamedTuple):
    """The predictions of a report's ``runs``; ``left_out``: notes on what cannot be shown, with the reason."""

    runs: list[RunPredictions]
    left_out: list[str]


_known: WeakKeyDictionary[ReportData, AllPredictions] = WeakKeyDictionary()


def all_predictions(study: ReportData) -> AllPredictions:
    """The predictions of each run of a report, task by task, the methods in their order; made once a report."""
    if study not in _known:
        _known[study] = _predictions(study)
    return _known[study]


def _predictions(study: ReportData) -> AllPredictions:
    wanted, left_out = _wanted(study)
    gone: dict[str, set[str]] = {}  # runs that cannot be shown, by the reason
    found: list[RunPredictions] = []
    contexts: dict[Any, SweepContext] = {}
    known: dict[str, dict[str, RunPredictions]] = {}  # for runs that have several rows
    for row in wanted:
        digest = row["digest"]
        if file := study.records[digest].get(TAKEN_FROM):
            gone.setdefault(f"no weights to predict by: records were taken from {file}", set()).add(digest)
            continue
        try:
            if digest not in known:
                known[digest] = predictions_of(study, row, contexts)
            if pd.isna(row["task_stores"]):
                found += known.pop(digest).values()
            else:
                run = known[digest][row["task"]]
                found.append(replace(run, task=row["task_name"], scored={**row, "metric": own_metric(row)}))
        except FusionkitError as error:
            gone.setdefault(error.what, set()).add(digest)
    left_out += [f"{what} ({counted(len(digests), 'run')})" for what, digests in gone.items()]
    return AllPredictions(found, left_out)


def _wanted(study: ReportData) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of the runs to show, the best by validation of each task and method, and a note if there are too many."""
    runs = study.whole
    of_means = of_own_stores(runs) & (runs["task"] == MEAN)
    runs = runs[(runs["task"] != "mlm") & ~of_means].sort_values("validation_score", ascending=False, kind="stable")
    best: list[Any] = runs.drop_duplicates(["task_name", "method"]).to_dict(orient="records")
    tasks = list(dict.fromkeys(study.whole["task_name"]))

    def order(run: dict[str, Any]) -> tuple[int, bool, int]:
        # Fusions with layer weights first: they have the most to show.
        weights = layer_weights_of(study.records[run["digest"]]).values()
        of_method = study.methods.index(run["method"])
        return tasks.index(run["task_name"]), all(each is None for each in weights), of_method

    found = sorted(best, key=order)
    by_task = [list(listed) for _, listed in groupby(found, key=itemgetter("task_name"))]
    turns = [run for turn in zip_longest(*by_task) for run in turn if run is not None]
    many = [f"the look inside has {MOST} runs of {len(turns)} tasks and methods"] if len(turns) > MOST else []
    kept = [(run["digest"], run["task_name"]) for run in turns[:MOST]]
    return [run for run in found if (run["digest"], run["task_name"]) in kept], many


def best_of_each(predictions: Iterable[RunPredictions]) -> list[RunPredictions]:
    """The run with the best validation score for each task and column, the first of equals."""
    found: dict[tuple[str, str], RunPredictions] = {}
    for run in predictions:
        rival = found.setdefault((run.task, run.column), run)
        # Larger is better: runs that are scored by perplexity are not shown.
        ours, theirs = (float(one.scored["validation_score"]) for one in (run, rival))
        if ours > theirs:
            found[run.task, run.column] = run
    return list(found.values())


def predictions_of(
    study: ReportData, row: Mapping[str, Any], contexts: dict[Any, SweepContext]
) -> dict[str, RunPredictions]:
    """A run's predictions by task, one entry per column that it predicts.

    Args:
        row: of ``study.frame``; for a run that was scored on several stores it says which one. contexts: a cache of
            loaded task data.

    Raises:
        FusionkitError: its store is missing, or its weights are damaged.
    """
    digest, task, method = row["digest"], row["task_name"], row["method"]
    spec = RunSpec.from_dict(study.records[digest]["spec"])
    key = (spec.store, spec.mix, spec.evaluate_on, spec.task_stores)
    if key not in contexts:
        contexts[key] = SweepContext(source_of(spec, study.stores))
    source = contexts[key].store
    # Only the split that is scored is needed: no draw, and no run to start from.
    folder = Path(str(study.frame.loc[study.frame["digest"] == digest, "folder"].iloc[0])) / digest
    run = open_run(folder)
    data = _data_of(run, contexts[key].load(spec), source)  # all rows: each has its token and its weights
    test = data.tests.get(row["evaluated"], data.test)
    split, name = (data.validation, "validation") if test is None else (test, "test")
    scored = {**study.records[digest], "score": row["score"]} if data.tests else study.records[digest]
    place = list(data.tests).index(row["evaluated"]) if row["evaluated"] in data.tests else 0
    positions = positions_of(run.layers, source.layers)
    answers = predict_parts(run.whole, data, split, positions)
    found, texts_of = dict[str, RunPredictions](), dict[str, Texts]()
    for part, examples in split.parts.items():
        store = _store_of(source, part, place)
        texts = texts_of.setdefault(store.digest, Texts(store, name if name in store.splits else "train"))
        part_data, gold, predicted = data.parts[part], list(examples.gold), answers[part]
        if part_data.task.several:
            gold, predicted = ([" + ".join(labels) or NO_LABEL for labels in side] for side in (gold, predicted))
        tokens, whole, has_row = _texts_of(examples, texts)
        found[part] = RunPredictions(
            digest=digest,
            task=task,
            method=method,
            column=part_data.label,
            scored=scored,
            kind=CLASS if part_data.task.several else kind_of(part_data.task, part_data.labels),
            split=name,
            layers=run.layers,
            gold=gold,
            predicted=predicted,
            tokens=tokens,
            whole=whole,
            weights=row_weights(run.whole.parts[part], examples, positions),
            offsets=examples.read_offsets[:: examples.sides],
            has_row=has_row,
        )
    return found


def _store_of(source: Stores, task: str, place: int) -> Store:
    """The store of the examples that a task is scored on; ``place`` is its number among the stores a mixture is scored
    on.
    """
    if isinstance(source, TaskStores):
        return source.store_of[task]
    return source.evaluation_stores[place] if isinstance(source, Mix) else source


def _data_of(run: TrainedRun, data: TaskData, source: Stores) -> TaskData:
    """The splits over stored states; for a run that trained through an encoder, over the states of its own encoder."""
    if run.delta is None:
        return data
    from fusionkit.tuning.trained import live_data_of  # loads transformers

    return live_data_of(run, data, source)


def _texts_of(
    split: TaskSplit, texts: Texts
) -> tuple[list[list[str]], list[str] | None, list[NDArray[np.bool_]]]:  # fmt: skip
    """``tokens``, ``whole`` and ``has_row`` of :class:`RunPredictions`; ``whole`` is None where words are tagged."""
    offsets = split.read_offsets[:: split.sides]
    rows = split.rows if split.read is None else split.rows[split.read]
    if split.kept is not None and split.word_offsets is not None:
        has_row = [split.kept[start:stop] for start, stop in pairwise(split.word_offsets.tolist())]
        # An example's words are those of the sequence of its first row; an example without rows has no text.
        tokens = [
            texts.words_of(rows[start], len(has)) if stop > start else ["?"] * len(has)
            for (start, stop), has in zip(pairwise(offsets), has_row, strict=True)
        ]
        return tokens, None, has_row
    of_examples = [rows[start:stop] for start, stop in pairwise(offsets)]
    tokens = [texts.rows(each) for each in of_examples]
    return tokens, [texts.whole(each) for each in of_examples], [np.ones(len(one), dtype=bool) for one in tokens]
