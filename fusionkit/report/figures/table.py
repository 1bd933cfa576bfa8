"""The figures that a report can have, by the names that ``--figures`` writes them under."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        title: what stands above it. caption: what one sees, with units.
    """

    title: str
    caption: str


FIGURES: dict[str, Figure] = {
    "shots": Figure("Score by labelled examples", ""),
    "score-by-epoch": Figure("Score by epoch", ""),
    "score-by-seconds": Figure("Score by training time", ""),
    "loss-by-step": Figure("Loss by step", ""),
    "loss-by-seconds": Figure("Loss by training time", ""),
    "layer-weights": Figure("Layer weights by task", ""),
    "layer-weights-by-label": Figure("Layer weights by label", ""),
    "layer-weights-by-language": Figure("Layer weights by language", ""),
    "layer-weights-by-seed": Figure("Layer weights by seed", ""),
    "parameters": Figure("Score by parameters", ""),
    "seconds": Figure("Score by seconds a head", ""),
    "single-layers": Figure("Each layer alone", ""),
    "break-even": Figure("Encoding once", ""),
    "confusion": Figure("Gold and predicted classes", ""),
}
