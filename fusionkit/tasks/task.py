"""What a task is: the unit it labels, the heads that fit it, and how its predictions are scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Task:
    """One kind of task.

    Attributes:
        name: as on the command line. unit: what carries a label, a whole ``example``, each ``word`` or each
            stored ``row``.
        heads: names of the heads that fit, the default first.
        needs_pair: True where examples are pairs of texts.
        numeric: True where a label is a number to come near to, not a class.
        scores: gold and predicted labels, and the labels of train → named scores, the task's own metric first.
            What is scored depends on train's labels alone, so that all splits have the same scores.
    """

    name: str
    unit: Literal["example", "word", "row"]
    heads: tuple[str, ...]
    needs_pair: bool
    scores: Callable[[Any, Any, list[str]], dict[str, float]]
    numeric: bool = False
