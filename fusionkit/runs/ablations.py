"""Scores of runs without their method's parts in a span of layers, kept beside the runs' records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionkit.errors import StoreError, first_line
from fusionkit.io.files import read_json, write_durably
from fusionkit.metrics import LESS_IS_BETTER
from fusionkit.specs import canonical_json

ABLATION = "ablation.json"


@dataclass(frozen=True)
class Ablation:
    """One run's scores with and without the parts of its method.

    Attributes:
        split: the split that was scored; ``examples`` is its size, or that of the part within ``limit``. layers: the
            layers that have parts. whole: the score with all parts, by task: ``""`` for a run of one task; a run of
            several also has their ``mean``. metrics: the name of the score, by task. spans: for each span its first
            layer, its last layer, and the scores without its parts.
    """

    digest: str
    method: str
    split: str
    examples: int
    layers: Sequence[int]
    metrics: Mapping[str, str]
    whole: Mapping[str, float]
    spans: Sequence[tuple[int, int, Mapping[str, float]]]
    limit: int | None = None

    def falls(self, task: str) -> dict[tuple[int, int], float]:
        """The share of a task's score that is lost, by first and last layer; NaN if the score with all parts is not
        above 0, or less of it is better, because a share of it means nothing.
        """
        whole = self.whole[task]
        shared = whole > 0 and self.metrics[task] not in LESS_IS_BETTER
        return {(a, b): 1 - found[task] / whole if shared else math.nan for a, b, found in self.spans}


def fall_text(fall: float, digits: int) -> str:
    """A share that is lost, in percent; a dash for NaN."""
    # A share just below 0 would be "-0".
    return "–" if math.isnan(fall) else f"{round(100 * fall, digits) + 0.0:.{digits}f}"


def write_ablation(folder: Path, made: Ablation) -> None:
    """Write an ablation into its run's folder."""
    write_durably(folder / ABLATION, canonical_json(dataclasses.asdict(made)).encode())


def read_ablation(folder: Path) -> Ablation | None:
    """The ablation in a run's folder; None where the run was not ablated."""
    if not (folder / ABLATION).is_file():
        return None
    return ablation_from(read_json(folder / ABLATION), folder / ABLATION)


def ablation_from(found: Mapping[str, Any], place: Path | str = "a record") -> Ablation:
    """An ablation from its JSON value; StoreError, which names the place, for another value."""
    try:
        return Ablation(**{**found, "spans": [(a, b, scores) for a, b, scores in found["spans"]]})
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{place} has a damaged ablation",
            expected="what `fusionkit ablate` writes",
            received=first_line(error, kind=True),
            remedy="remove it, then ablate the run again",
        ) from error
