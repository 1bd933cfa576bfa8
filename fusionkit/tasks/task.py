"""What a task is: the unit it labels, the heads that fit it, and how its predictions are scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Task:
    """One kind of task.

    Attributes:
        name: as on the command line. unit: what carries a label, a whole ``example`` or each ``word``.
        heads: names of the heads that fit, the default first.
        needs_pair: True where examples are pairs of texts.
        scores: gold and predicted labels → named scores; the first is the task's own metric.
    """

    name: str
    unit: Literal["example", "word"]
    heads: tuple[str, ...]
    needs_pair: bool
    scores: Callable[[Any, Any], dict[str, float]]
