"""Matching a store's rows with labels: the rows of each labelled example, and what the loss compares with.

Labels a training split lacks cannot be learned: where they occur in validation or test they count as errors, and are
counted aloud.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionkit.alignment import lay_rows
from fusionkit.dataset.draws import carve
from fusionkit.dataset.split import TaskSplit
from fusionkit.errors import DataError, UsageError
from fusionkit.ragged import IntArray, flat_rows, offsets_of
from fusionkit.store import Split, Store
from fusionkit.tasks import UNSEEN, Task

VALIDATION_SHARE = 0.1
Columns = dict[str, tuple[list[Any], NDArray[np.bool_]]]


def match_splits(
    store: Store,
    columns: Columns,
    task: Task,
    pool: str | None,
    names: list[str],
    notes: list[str],
    whole: bool = False,
    unpooled: bool = False,
) -> dict[str, TaskSplit]:
    """The splits that have labels, each matched with its rows; ``names`` are the classes, a class's number its place.

    Raises:
        UsageError: an example has no row to read.
    """
    splits = {}
    for name, (gold, present) in columns.items():
        if not present.any():
            notes.append(f"{name} has no labels: not used")
            continue
        make = _word_split if task.unit == "word" else _example_split
        splits[name] = make(store[name], store, task, pool, gold, present, names, unpooled)
        if whole:
            splits[name] = _with_all_rows(splits[name], store[name], np.flatnonzero(present))
        unseen = 0 if task.numeric else _unseen(splits[name], task, names)
        if unseen:
            missing = sorted({g for row in splits[name].gold for g in task.classes(row) if g not in names})
            notes.append(
                f"{name}: {unseen} {task.unit}s carry a label that train lacks ({_few(missing)}): counted as errors"
            )
        lost = 0 if (kept := splits[name].kept) is None else int((~kept).sum())
        if lost:
            notes.append(f"{name}: {lost} words have no row: left out of training, scored as the default tag")
    return splits


def _unseen(split: TaskSplit, task: Task, names: list[str]) -> int:
    """How many units carry a class that train lacks."""
    if task.several:
        return sum(not set(labels).issubset(names) for labels in split.gold)
    return int((split.targets == UNSEEN).sum())


def carve_validation(store: Store, train: TaskSplit, notes: list[str]) -> tuple[TaskSplit, TaskSplit]:
    """What stays of train, and a tenth of it as validation.

    Raises:
        DataError: there is too little.
    """
    if len(train) < 2:
        raise DataError(
            f"{store.path} has no validation split and too little to set one aside",
            expected="a validation split, or two training examples with labels",
            received=f"{len(train)}",
            remedy="encode a source with a validation split",
        )
    stay, share = carve(len(train), VALIDATION_SHARE)
    notes.append(f"no validation split: {len(share)} training examples set aside for it, the same in every run")
    return train.subset(stay), train.subset(share)


def _word_split(
    split: Split,
    store: Store,
    task: Task,
    pool: str | None,
    gold: list[Any],
    present: NDArray[np.bool_],
    names: list[str],
    unpooled: bool,
) -> TaskSplit:
    """Each word of the examples that have labels, with its row."""
    chosen = np.flatnonzero(present)
    told = [gold[i] for i in chosen]
    if store.rows == "tokens":
        tokens = store.manifest["columns"]["tokens"]
        words_of = np.array([len(words) for words in split.examples[tokens]], dtype=np.int64)
        laid = lay_rows("words", split.token_offsets, split.word_index, words_of)
        rows, mask, word_offsets = laid.first, laid.mask, laid.row_offsets
    else:
        word_offsets = split.row_offsets
        rows, mask = np.arange(word_offsets[-1], dtype=np.int64), split.row_mask
    words, word_offsets = flat_rows(word_offsets, chosen)
    kept = mask[words]
    targets = task.targets(told, {name: k for k, name in enumerate(names)})[kept]
    offsets = offsets_of(kept.astype(np.int64))[word_offsets]
    ids = _ids(split, chosen)
    return TaskSplit(split.hidden_states, rows[words][kept], offsets, targets, told, ids, kept, word_offsets)


def _example_split(
    split: Split,
    store: Store,
    task: Task,
    pool: str | None,
    gold: list[Any],
    present: NDArray[np.bool_],
    names: list[str],
    unpooled: bool,
) -> TaskSplit:
    """The examples that have labels, with the rows that are pooled, or the one that stands for each."""
    chosen = np.flatnonzero(present)
    told = [gold[i] for i in chosen]
    targets = task.targets(told, {name: k for k, name in enumerate(names)})
    sequences = split.pairs[chosen].ravel()
    if unpooled or pool in ("mean", "max"):
        rows, offsets = _rows_with_states(split, sequences)
    else:  # cls, or rows that are one a sequence already
        if empty := int((np.diff(split.row_offsets)[sequences] == 0).sum()):
            raise UsageError(
                f"{empty} texts of {split.name} have no first token",
                expected="a sub-token in every text",
                received="empty texts, to which this encoder's tokenizer adds nothing",
                remedy="choose --pool mean or max, or remove these examples",
            )
        rows, offsets = split.row_offsets[sequences], np.arange(len(sequences) + 1, dtype=np.int64)
    return TaskSplit(split.hidden_states, rows, offsets, targets, told, _ids(split, chosen), sides=split.sides)


def _ids(split: Split, examples: IntArray) -> list[str]:
    """What the source calls some examples, or their numbers."""
    frame = split.examples
    column = next((name for name in ("id", "idx", "guid") if name in frame.columns), None)
    return [str(one) for one in (frame[column].iloc[examples].tolist() if column else examples)]


def _rows_with_states(split: Split, sequences: IntArray) -> tuple[IntArray, IntArray]:
    """All rows of some sequences and the offsets of each, without the zeros of words that have no state."""
    rows, offsets = flat_rows(split.row_offsets, sequences)
    kept = split.row_mask[rows]
    return rows[kept], offsets_of(kept.astype(np.int64))[offsets]


def _with_all_rows(narrow: TaskSplit, split: Split, examples: IntArray) -> TaskSplit:
    """The same examples with all of their rows; the head reads those that it read before."""
    rows, offsets = _rows_with_states(split, split.pairs[examples].ravel())
    read = np.isin(rows, narrow.rows)
    return dataclasses.replace(narrow, rows=rows, offsets=offsets, read=None if read.all() else read)


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
