"""A store seen through a task: its splits with their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fusionkit.dataset.split import TaskSplit
from fusionkit.lm_head import LmHead
from fusionkit.tasks import Task


@dataclass(frozen=True)
class Coding:
    """A uniform code of labels.

    Attributes:
        bits: of one label. before: of all labels before the block to code if that is the first block, else 0.
    """

    bits: float
    before: float


@dataclass(frozen=True)
class TaskData:
    """A store's splits under one task.

    Attributes:
        labels: class names; a class's number is its place here. A task of numbers has none.
        classes: the number of classes in a few-shot draw: of labels, or for span tags of entity types; 1 for a task of
            numbers.
        default: the tag given to words that have no row.
        test: None where the source has no test split. notes: messages for the user.
        lm_head: the encoder's LM head, for ``mlm``.
        name: the name of this task, where a run has several. others: the run's other tasks by their names; their splits
            are the ``others`` of this task's splits. apart: each task has examples of its own.
        tests: the test splits by their stores' names, where several stores are scored; ``test`` is the first.
        coding: set for a run of an online code: it scores code lengths, and its test split is the block that it codes.
        draws: the user's draws, lists of ids of training examples, by the digest that specs hold.
    """

    task: Task
    label: str
    pool: str | None
    labels: list[str]
    classes: int
    default: str
    train: TaskSplit
    validation: TaskSplit
    test: TaskSplit | None
    notes: list[str] = field(default_factory=list)
    lm_head: LmHead | None = None
    name: str = ""
    others: Mapping[str, TaskData] = field(default_factory=dict)
    tests: dict[str, TaskSplit] = field(default_factory=dict)
    draws: Mapping[str, Sequence[str]] = field(default_factory=dict)
    coding: Coding | None = None
    apart: bool = False

    @property
    def parts(self) -> dict[str, TaskData]:
        """The data of each task by its name: this one and the others."""
        if not self.apart:
            return {self.name: self, **self.others}
        own: dict[str, Any] = {"others": {}, "apart": False}
        for name in ("train", "validation", "test"):
            split = getattr(self, name)
            own[name] = None if split is None else split.parts[self.name]
        return {self.name: replace(self, **own), **self.others}

    @property
    def scored_tests(self) -> dict[str, TaskSplit]:
        """All test splits by name: ``tests``, else ``test`` under the name ``""``, else none."""
        return self.tests or ({} if self.test is None else {"": self.test})

    @property
    def sides(self) -> dict[str, int]:
        """The number of sequences per example of each task, by its name."""
        return {name: split.sides for name, split in self.train.parts.items()}
