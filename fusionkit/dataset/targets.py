"""Matching a store's rows with labels: the rows of each labelled example, and the targets of the loss.

Labels a training split lacks cannot be learned: where they occur in validation or test they count as errors, and a
message counts them. A test split of such labels alone counts as unlabelled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionkit.alignment import lay_rows
from fusionkit.dataset.draws import carve
from fusionkit.dataset.origin import Origin
from fusionkit.dataset.split import TaskSplit
from fusionkit.errors import DataError, UsageError
from fusionkit.names import id_column
from fusionkit.plural import counted, few
from fusionkit.ragged import IntArray, flat_rows, offsets_of
from fusionkit.specs import PER_SEQUENCE
from fusionkit.store import Split, Store
from fusionkit.store.layout import damaged_store
from fusionkit.tasks import UNSEEN, Task

VALIDATION_SHARE = 0.1
Columns = dict[str, tuple[list[Any], NDArray[np.bool_]]]


NO_LABELS = " has no labels: not used"  # the end of a note on a split


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
    """The splits that have labels, each matched with its rows; a class's number is its place in ``names``."""
    splits, known = {}, set(names)
    for name, (gold, present) in columns.items():
        if not present.any():
            notes.append(f"{name}{NO_LABELS}")
            continue
        examples, pooled = np.flatnonzero(present), unpooled or pool in ("mean", "max")
        reads = "all" if pooled else "last" if pool == "last" else "first"
        split = _match(store[name], store, task, [gold[i] for i in examples], examples, names, reads)
        if whole and store.rows not in PER_SEQUENCE:
            split = _with_all_rows(split, store[name], examples)
        unseen = 0 if task.numeric else _unseen(split, task, known)
        if unseen:
            missing = few(sorted({one for row in split.gold for one in task.classes(row)} - known), 4)
            notes.append(
                f"{name}: {counted(unseen, task.unit)} with a label that train lacks ({missing}): counted as errors"
            )
        lost = 0 if split.kept is None else int((~split.kept).sum())
        if lost:
            notes.append(
                f"{name}: {counted(lost, 'word')} without a row: left out of training, scored as the default tag"
            )
        splits[name] = split
    return splits


def _unseen(split: TaskSplit, task: Task, known: set[str]) -> int:
    """The number of units with a class that train lacks."""
    if task.several:
        return sum(not known.issuperset(labels) for labels in split.gold)
    return int((split.targets == UNSEEN).sum())


def without_strange_test(columns: Columns, task: Task, names: Sequence[str], notes: list[str]) -> Columns:
    """The columns without a test split that cannot be scored, such as -1 throughout: none of its labels occurs in
    train, or all of its numbers are equal. Not for tasks of several labels an example, or of tags; a note says so.
    """
    if "test" not in columns or task.unit != "example" or task.several:
        return columns
    gold, present = columns["test"]
    told = {gold[place] for place in np.flatnonzero(present)}
    if task.numeric:
        if len(told) != 1 or present.sum() < 2:
            return columns
        notes.append(f"test: all of its numbers are {told.pop():g}: it is left out")
    elif not told or told & set(names):
        return columns
    else:
        notes.append(f"test: no label of it occurs in train ({few(sorted(told), 4)}): it is left out")
    return {name: column for name, column in columns.items() if name != "test"}


def carve_validation(
    store: Store, train: TaskSplit, notes: list[str], what: str = "training examples"
) -> tuple[TaskSplit, TaskSplit]:
    """Nine tenths of train, and a tenth as validation; DataError if there is too little."""
    if len(train) < 2:
        raise DataError(
            f"{store.path} has no validation split and too little to set one aside",
            expected="a validation split, or two training examples with labels",
            received=f"{len(train)}",
            remedy="encode a source with a validation split",
        )
    stay, share = carve(len(train), VALIDATION_SHARE)
    notes.append(f"no validation split: {len(share)} {what} set aside for it, the same in every run")
    return train.subset(stay), train.subset(share)


def _match(
    split: Split, store: Store, task: Task, told: list[Any], examples: IntArray, names: list[str], reads: str
) -> TaskSplit:
    """Some examples with labels and rows: one row per word, all rows of a sequence to pool, or one row per sequence.

    Args:
        told: the labels of the examples. reads: which rows of a sequence: ``all``, to be pooled later, the ``first`` or
            the ``last``.
    """
    targets = task.targets(told, {name: k for k, name in enumerate(names)})
    origin = Origin.of(store, split.name, examples)
    column = id_column(split.column_names)
    ids = [str(one) for one in (split.columns([column])[column].iloc[examples].tolist() if column else examples)]
    if task.unit == "word":
        words, word_offsets, mask = _words(split, store, examples)
        offsets = offsets_of(mask.astype(np.int64))[word_offsets]
        return TaskSplit(
            split.hidden_states, words[mask], offsets, targets[mask], told, ids, kept=mask, word_offsets=word_offsets,
            origin=origin,
        )  # fmt: skip
    sequences = split.pairs[examples].ravel()
    if reads == "all":
        rows, offsets = _rows_with_states(split, sequences)
    else:  # cls, last, or a store with one row per sequence
        if empty := int((np.diff(split.row_offsets)[sequences] == 0).sum()):
            raise UsageError(
                f"no {reads} token in {counted(empty, 'text')} of {split.name}",
                expected="a sub-token in every text",
                received="empty texts, to which this encoder's tokenizer adds nothing",
                remedy="choose --pool mean or max, or remove these examples",
            )
        ends = split.row_offsets[sequences + 1] - 1 if reads == "last" else split.row_offsets[sequences]
        rows, offsets = ends, np.arange(len(sequences) + 1, dtype=np.int64)
    return TaskSplit(split.hidden_states, rows, offsets, targets, told, ids, sides=split.sides, origin=origin)


def _words(split: Split, store: Store, examples: IntArray) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """The row of each word of some examples, the words' offsets, and False where a word has no row."""
    if store.rows == "tokens":
        tokens = store.manifest["columns"]["tokens"]
        counts = np.array([len(words) for words in split.columns([tokens])[tokens]], dtype=np.int64)
        lengths = np.diff(split.token_offsets)
        if (split.word_index >= np.repeat(counts, lengths)).any():
            raise damaged_store(store.path, f"{split.name}: word_index has words that the examples have not")
        laid = lay_rows("words", split.token_offsets, split.word_index, counts)
        words, word_offsets = flat_rows(laid.row_offsets, examples)
        return laid.first[words], word_offsets, laid.mask[words]
    words, word_offsets = flat_rows(split.row_offsets, examples)
    return words, word_offsets, split.row_mask[words]


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
