"""Matching a store's rows with the labels of a task.

Labels a training split lacks cannot be learned: where they occur in validation or test they count as
errors, and are counted aloud. Examples without any label are left out, and counted aloud; without a number to
come near to, they are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionkit.alignment import first_pieces
from fusionkit.dataset.mlm import load_masked
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.draws import carve
from fusionkit.errors import DataError, UsageError
from fusionkit.ragged import IntArray, flat_rows, offsets_of
from fusionkit.store import Split, Store
from fusionkit.tags import are_span_tags
from fusionkit.tasks import Task

VALIDATION_SHARE = 0.1
UNSEEN = -1


def load_task(
    store: Store,
    task: Task,
    label: str,
    pool: str | None,
    whole: bool = False,
    unpooled: bool = False,
    among: Mapping[str, NDArray[np.bool_]] | None = None,
) -> TaskData:
    """Match a store's rows with labels.

    Args:
        whole: keep all rows of each example, for a fusion that looks at them, not only those the head reads.
        unpooled: the head reads all rows of each example, none of them pooled.
        among: by split bool ``[examples]``, those that may be used; None is all.

    Raises:
        UsageError: the rows or the column cannot carry the task, or there is no train split.
        DataError: fewer than two classes or numbers to learn, a number missing, or nothing to judge them on.
    """
    if task.unit == "row":
        return load_masked(store, task)
    if "train" not in store.splits:
        raise UsageError(
            f"{store.path} has no train split",
            expected="train",
            received=", ".join(store.splits),
            remedy="encode one",
        )
    notes: list[str] = []
    columns = label_columns(store, task, label, notes, among)
    names = class_names(columns["train"][0], task, label)
    splits = match_splits(store, columns, task, pool, names, notes, whole, unpooled)
    train = splits["train"]
    if "validation" not in splits:
        train, splits["validation"] = carve_validation(store, train, notes)
    if "test" not in splits:
        notes.append("no labelled test split: scores are validation's alone")
    classes, default = counted_classes(names, train, task)
    return TaskData(task, label, pool, names, classes, default, train, splits["validation"], splits.get("test"), notes)


Columns = dict[str, tuple[list[Any], NDArray[np.bool_]]]


def label_columns(
    store: Store,
    task: Task,
    label: str,
    notes: list[str],
    among: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Columns:
    """By split the labels of all examples, and which examples have any; what was left out goes to ``notes``.

    Args:
        among: by split bool ``[examples]``, those that may be used; None is all.

    Raises:
        UsageError: the rows or the column cannot carry the task. DataError: a number is missing.
    """
    tokens = store.manifest["columns"]["tokens"]
    if task.unit == "word" and (store.rows in ("cls", "mean") or tokens is None):
        raise UsageError(
            f"rows of {store.rows} carry no words to tag",
            expected="rows of words, words-mean or tokens, of a column with lists of words",
            received=f"rows of {store.rows} of {'words' if tokens else 'texts'}",
            remedy="encode again with --rows words, and --tokens where the words are",
        )
    frames = {name: store[name].examples for name in store.splits}
    columns = {
        name: _tags(frame, name, label, tokens, None if among is None else among[name])
        if task.unit == "word"
        else _numbers(frame, name, label)
        if task.numeric
        else _labels(frame, name, label, notes)
        for name, frame in frames.items()
    }
    return columns if among is None else {name: _only(*found, among[name]) for name, found in columns.items()}


def class_names(gold: list[Any], task: Task, label: str) -> list[str]:
    """The classes of train's labels in their order; a task of numbers has none.

    Raises:
        DataError: there are fewer than two.
    """
    names = _class_names(gold, task)
    if len(names) < 2:
        raise DataError(
            f"column {label!r} of train has fewer than two {'different numbers' if task.numeric else 'classes'}",
            expected="two or more",
            received=", ".join(names) or "none",
            remedy="choose another --label",
        )
    return [] if task.numeric else names


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
        splits[name] = _task_split(store[name], store, task, pool, gold, present, names, unpooled)
        if whole:
            splits[name] = _with_all_rows(splits[name], store[name], np.flatnonzero(present))
        unseen = 0 if task.numeric else int((splits[name].targets == UNSEEN).sum())
        if unseen:
            missing = sorted({g for row in splits[name].gold for g in ([row] if isinstance(row, str) else row)})
            missing = [g for g in missing if g not in names]
            notes.append(
                f"{name}: {unseen} {task.unit}s carry a label that train lacks ({_few(missing)}): counted as errors"
            )
        lost = 0 if (kept := splits[name].kept) is None else int((~kept).sum())
        if lost:
            notes.append(f"{name}: {lost} words have no row: left out of training, scored as the default tag")
    return splits


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


def counted_classes(names: list[str], train: TaskSplit, task: Task) -> tuple[int, str]:
    """How many classes a few-shot draw counts, and the tag of words that have no row."""
    flat = [tag for row in train.gold for tag in row] if task.unit == "word" else train.gold
    spans = task.unit == "word" and are_span_tags(names)
    return (
        len({name[2:] for name in names if name != "O"}) if spans else max(len(names), 1),
        "O" if spans else max(names, key=flat.count, default=""),
    )


def _tags(
    frame: pd.DataFrame, split: str, label: str, tokens: str, among: NDArray[np.bool_] | None
) -> tuple[list[Any], NDArray[np.bool_]]:
    """Tags as text, and which examples have them: all that are asked for or, where the column is absent, none."""
    if label not in frame.columns:
        return [None] * len(frame), np.zeros(len(frame), dtype=bool)
    present = np.ones(len(frame), dtype=bool) if among is None else among
    for example, (tags, words) in enumerate(zip(frame[label], frame[tokens], strict=True)):
        if not present[example]:
            continue
        if tags is None or len(tags) != len(words):
            raise UsageError(
                f"{split}, example {example}: {label!r} does not match {tokens!r}",
                expected=f"{len(words)} tags, one a word",
                received="none" if tags is None else str(len(tags)),
                remedy="choose a --label that holds one tag a word",
            )
    return [[*map(str, tags)] if ok else None for tags, ok in zip(frame[label], present, strict=True)], present


def _only(gold: list[Any], present: NDArray[np.bool_], among: NDArray[np.bool_]) -> tuple[list[Any], NDArray[np.bool_]]:
    """Labels of some examples alone: what the others carry is not learned, and is no class."""
    kept = present & among
    return [one if ok else None for one, ok in zip(gold, kept, strict=True)], kept


def _labels(frame: pd.DataFrame, split: str, label: str, notes: list[str]) -> tuple[list[Any], NDArray[np.bool_]]:
    """Labels as text, and which examples have one at all."""
    if label not in frame.columns:
        return [None] * len(frame), np.zeros(len(frame), dtype=bool)
    values = frame[label].tolist()
    present = np.array([not no_label(value) for value in values])
    missing = int((~present).sum())
    if missing and present.any():
        notes.append(f"{split}: {missing} examples have no {label}: left out")
    return [_text(value) if ok else None for value, ok in zip(values, present, strict=True)], present


def _numbers(frame: pd.DataFrame, split: str, label: str) -> tuple[list[Any], NDArray[np.bool_]]:
    """Numbers, and which examples have them: all or, where the column is absent or empty, none."""
    values = np.full(len(frame), np.nan)
    if label in frame.columns:
        try:
            values = pd.to_numeric(frame[label]).to_numpy(dtype=np.float64, na_value=np.nan)
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{split}: {label!r} holds something else than numbers",
                expected="a number in every example",
                received=str(error),
                remedy="mend the source and encode it again, or choose another --label",
            ) from error
    sound = np.isfinite(values)
    if not sound.all() and not np.isnan(values).all():
        first = int(np.flatnonzero(~sound)[0])
        raise DataError(
            f"{split}, example {first}: no number in {label!r}",
            expected="a finite number in every example, or in none of the split",
            received=f"{values[first]}; {int((~sound).sum())} of {len(values)} examples have none",
            remedy="remove these examples or fill in their numbers, and encode again",
        )
    return values.tolist(), sound


def no_label(value: Any) -> bool:
    """True for what stands where an example has no label."""
    return value is None or value == "" or (isinstance(value, float) and np.isnan(value))


def _text(value: Any) -> str:
    # Numbers that met a missing value come back from Parquet as floats: 1.0 is the label 1.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _class_names(gold: list[Any], task: Task) -> list[str]:
    if task.numeric:
        return [f"{number:g}" for number in np.unique(gold) if np.isfinite(number)]
    seen = {g for row in gold if row is not None for g in (row if task.unit == "word" else [row])}
    try:
        return sorted(seen, key=lambda name: (int(name), name))
    except ValueError:
        return sorted(seen)


def _task_split(
    split: Split,
    store: Store,
    task: Task,
    pool: str | None,
    gold: list[Any],
    present: NDArray[np.bool_],
    names: list[str],
    unpooled: bool,
) -> TaskSplit:
    number = {name: k for k, name in enumerate(names)}
    chosen = np.flatnonzero(present)
    gold = [gold[i] for i in chosen]
    frame = split.examples
    id_column = next((name for name in ("id", "idx", "guid") if name in frame.columns), None)
    ids = [str(one) for one in (frame[id_column].iloc[chosen].tolist() if id_column else chosen)]
    if task.unit == "word":
        if store.rows == "tokens":
            tokens = store.manifest["columns"]["tokens"]
            words_of = np.array([len(words) for words in frame[tokens]], dtype=np.int64)
            laid = first_pieces(split.token_offsets, split.word_index, words_of)
            rows, mask, word_offsets = laid.first, laid.mask, laid.row_offsets
        else:
            word_offsets = split.row_offsets
            rows, mask = np.arange(word_offsets[-1], dtype=np.int64), split.row_mask
        words, word_offsets = flat_rows(word_offsets, chosen)
        kept = mask[words]
        targets = np.array([number.get(tag, UNSEEN) for row in gold for tag in row], dtype=np.int64)[kept]
        offsets = offsets_of(kept.astype(np.int64))[word_offsets]
        return TaskSplit(split.hidden_states, rows[words][kept], offsets, targets, gold, ids, kept, word_offsets)
    wanted: IntArray | NDArray[np.float32] = (
        np.array(gold, dtype=np.float32)
        if task.numeric
        else np.array([number.get(label, UNSEEN) for label in gold], dtype=np.int64)
    )
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
    return TaskSplit(split.hidden_states, rows, offsets, wanted, gold, ids, sides=split.sides)


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
