"""What runs score without the parts of their methods in spans of layers, kept beside their records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionkit.io.files import read_json, write_durably
from fusionkit.specs import canonical_json

ABLATION = "ablation.json"


@dataclass(frozen=True)
class Ablation:
    """What a run scores without its parts.

    Attributes:
        split: that was scored; ``examples`` of it. layers: those that have parts. whole: by task the score with all
            parts; of one task by ``""``, of several their ``mean`` too. metrics: by task its score's name. spans: first
            and last layer of each span, and the scores without its parts.
    """

    digest: str
    method: str
    split: str
    examples: int
    layers: Sequence[int]
    metrics: Mapping[str, str]
    whole: Mapping[str, float]
    spans: Sequence[tuple[int, int, Mapping[str, float]]]

    def falls(self, task: str) -> dict[tuple[int, int], float]:
        """By first and last layer the share of a task's score that is lost; of a score of 0 none is."""
        whole = self.whole[task]
        return {(a, b): 1 - found[task] / whole if whole else 0.0 for a, b, found in self.spans}


def write_ablation(folder: Path, made: Ablation) -> None:
    """Keep it in the folder of its run."""
    write_durably(folder / ABLATION, canonical_json(dataclasses.asdict(made)).encode())


def read_ablation(folder: Path) -> Ablation | None:
    """What was kept beside a run; None where it was not ablated."""
    if not (folder / ABLATION).is_file():
        return None
    found: dict[str, Any] = read_json(folder / ABLATION)
    return Ablation(**{**found, "spans": [(a, b, scores) for a, b, scores in found["spans"]]})
