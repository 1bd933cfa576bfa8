"""What a task is: the unit it labels, how its column is read, and the heads that fit it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fusionkit.heads import heads_of
from fusionkit.tasks.label_column import Gold, LabelColumn, read_labels

UNSEEN = -1  # the number of a class that train lacks
Targets = NDArray[np.int64] | NDArray[np.float32]


def one_class(label: Any) -> Iterable[str]:
    """The only class of an example's label."""
    return (label,)


def class_numbers(gold: list[Any], number: Mapping[str, int]) -> Targets:
    """int64 ``[examples]``, :data:`UNSEEN` for a class without a number."""
    return np.array([number.get(label, UNSEEN) for label in gold], dtype=np.int64)


@dataclass(frozen=True)
class Task:
    """One kind of task.

    Attributes:
        name: as on the command line. unit: the thing that has a label: a whole ``example``, each ``word`` or each
            stored ``row``.
        needs_pair: True where examples are pairs of texts.
        numeric: True where a label is a number to predict, not a class.
        several: True where an example may have any number of classes.
        read: a split's column → one label per example, and which examples have one.
        classes: an example's label → its classes; for tasks on words the classes of its words.
        targets: labels and each class's number → the targets of the loss, one for each unit.
    """

    name: str
    unit: Literal["example", "word", "row"]
    needs_pair: bool = False
    numeric: bool = False
    several: bool = False
    read: Callable[[LabelColumn], Gold] = read_labels
    classes: Callable[[Any], Iterable[str]] = one_class
    targets: Callable[[list[Any], Mapping[str, int]], Targets] = class_numbers

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of fusionkit's heads that fit, the default first."""
        return heads_of(self.name)

    @property
    def of_lists(self) -> bool:
        """Whether the column holds one list per example: one tag per word, or the example's classes."""
        return self.unit == "word" or self.several
