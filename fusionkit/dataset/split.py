"""One split seen through a task: the rows of its examples, and their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.origin import Origin
from fusionkit.ragged import IntArray, flat_rows, offsets_of
from fusionkit.tags import are_span_tags, span_types


class States(Protocol):
    """States of rows: of a stored split (:class:`fusionkit.store.HiddenStates`), several splits joined, an array."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, layers, hidden."""

    def gather(self, rows: IntArray, layers: Sequence[int] | None = None) -> Tensor:
        """Chosen rows and positions of layers, ``[len(rows), layers, hidden]``."""


@runtime_checkable
class ChunkedStates(States, Protocol):
    """States stored in chunks, from which chosen rows can be read into memory."""

    def chunk_of(self, rows: IntArray) -> IntArray:
        """The number of the chunk that each row lies in."""

    def load(self, rows: IntArray, layers: Sequence[int], reuse: Any = None) -> States:
        """Read ascending rows and positions of layers into memory, as States that hold only these.

        ``reuse`` is an earlier result that is no longer needed: its memory is reused.
        """


@dataclass(frozen=True)
class TaskSplit:
    """One split's examples with their rows and labels.

    Attributes:
        states: the store's, or several stores' joined. rows: int64 ``[n]``, stored rows in order of the examples.
        offsets: int64 ``[examples · sides + 1]``, the bounds of each sequence in ``rows``.
        targets: int64, one per unit; float32 for a task of numbers; float32 ``[examples, classes]`` where an example
            may have several classes.
        gold: per example a label, a number, or a list of tags or of labels.
        kept: for word tasks, bool per word: False where the word has no row (its tag is never predicted).
        word_offsets: int64 ``[examples + 1]`` into ``kept``.
        ids: the source's example ids.
        read: bool ``[n]``, the rows that the head reads; None is all. The others are there for a fusion that
            looks at whole examples.
        sides: sequences per example: 2 for pairs that are stored as two sequences, one after the other.
        name: the task of these labels, where a run has several tasks. others: the same examples and rows with the
            labels of the run's other tasks, by their names. apart: the others have examples of their own instead.
        origin: where the examples lie in their stores; None for examples that are in no store.
    """

    states: States
    rows: IntArray
    offsets: IntArray
    targets: IntArray | NDArray[np.float32]
    gold: list[Any]
    ids: list[str]
    kept: NDArray[np.bool_] | None = None
    word_offsets: IntArray | None = None
    read: NDArray[np.bool_] | None = None
    sides: int = 1
    name: str = ""
    others: Mapping[str, TaskSplit] = field(default_factory=dict)
    origin: Origin | None = None
    apart: bool = False

    @property
    def parts(self) -> dict[str, TaskSplit]:
        """The split of each task by its name: this one and the others."""
        return {self.name: replace(self, others={}, apart=False) if self.apart else self, **self.others}

    @property
    def streams(self) -> list[TaskSplit]:
        """The splits that have examples of their own: this one with its others, or each task's."""
        return list(self.parts.values()) if self.apart else [self]

    @cached_property
    def read_offsets(self) -> IntArray:
        """int64 ``[examples · sides + 1]`` into the rows read."""
        return self.offsets if self.read is None else offsets_of(self.read.astype(np.int64))[self.offsets]

    @cached_property
    def holders(self) -> dict[str, IntArray]:
        """By class, the examples that hold it: as their label, as one of their labels, or as the tag of a word that has
        a row. For span tags a class is an entity type, and ``O`` is not a class.
        """
        held = [set(label) if isinstance(label, list) else {str(label)} for label in self.gold]
        if self.kept is not None and self.word_offsets is not None:
            held = [
                {tag for tag, has_row in zip(tags, self.kept[start:stop], strict=True) if has_row}
                for tags, (start, stop) in zip(self.gold, pairwise(self.word_offsets), strict=True)
            ]
            if are_span_tags(set().union(*held)):
                held = [span_types(tags) for tags in held]
        found: dict[str, list[int]] = {}
        for example, names in enumerate(held):
            for name in names:
                found.setdefault(name, []).append(example)
        return {name: np.array(found[name], dtype=np.int64) for name in sorted(found)}

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def is_dense(self) -> bool:
        """True where every sequence has one row: minibatches of one size then have one shape."""
        return self.read is None and bool((np.diff(self.offsets) == 1).all())

    def batch(self, examples: IntArray, layers: tuple[int, ...], states: Tensor | None = None) -> Batch:
        """The batch of some examples, in order, with these positions of layers; ``states``: theirs, if read already."""
        sequences = self.sequences(examples)
        at, offsets = flat_rows(self.offsets, sequences)
        read_at, read_offsets = (at, offsets) if self.read is None else flat_rows(self.read_offsets, sequences)
        if states is None:
            states = float_rows(self.states.gather(self.rows[at], layers))
        return Batch(
            states,
            torch.from_numpy(offsets),
            torch.from_numpy(self.targets[read_at if self.kept is not None else examples]),
            None if self.read is None else torch.from_numpy(self.read[at].nonzero()[0]),
            torch.from_numpy(read_offsets),
            self.name,
            {name: other.batch(examples, layers, states) for name, other in self.others.items()},
        )

    def subset(self, examples: IntArray) -> TaskSplit:
        """Only these examples, in the order given."""
        sequences = self.sequences(examples)
        at, offsets = flat_rows(self.offsets, sequences)
        read_at, _ = flat_rows(self.read_offsets, sequences)
        kept = word_offsets = None
        if self.kept is not None and self.word_offsets is not None:
            words, word_offsets = flat_rows(self.word_offsets, examples)
            kept = self.kept[words]
        return replace(
            self,
            rows=self.rows[at],
            offsets=offsets,
            targets=self.targets[read_at if self.kept is not None else examples],
            gold=[self.gold[i] for i in examples],
            ids=[self.ids[i] for i in examples],
            kept=kept,
            word_offsets=word_offsets,
            read=None if self.read is None else self.read[at],
            others={name: other.subset(examples) for name, other in self.others.items()},
            origin=None if self.origin is None else self.origin.take(examples),
        )

    def over(self, states: States, rows: IntArray) -> TaskSplit:
        """The same examples with their rows in other ``states``; ``rows`` are the row numbers there."""
        others = {name: other.over(states, rows) for name, other in self.others.items()}
        return replace(self, states=states, rows=rows, others=others)

    def sequences(self, examples: IntArray) -> IntArray:
        """The numbers of some examples' sequences, int64 ``[len(examples) · sides]``, in order."""
        return (examples[:, None] * self.sides + np.arange(self.sides)).ravel()


def tasks_joined(splits: Mapping[str, TaskSplit], apart: bool = False) -> TaskSplit:
    """The first task's split with the other splits as its ``others``; ``apart``: each has its own examples."""
    (name, first), *others = splits.items()
    return replace(first, name=name, others=dict(others), apart=apart)


def float_rows(states: Tensor) -> Tensor:
    """``[rows, layers, hidden]`` as contiguous float32, so that products over layers and over rows need no copy."""
    # `to` returns a tensor that is float32 already unchanged, contiguous or not.
    return states.to(torch.float32, memory_format=torch.contiguous_format).contiguous()
