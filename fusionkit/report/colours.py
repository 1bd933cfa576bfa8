"""A colour and a shape for each fusion, the same in every chart and in every report.

Each colour has a contrast of 3 or more to white and to the dark page, as WCAG 2.2 asks of graphics (1.4.11).
Each fusion also has a shape, for readers who see few colours. A fusion with options (``attention:scale=yes``) keeps the
colour of the fusion and is drawn dashed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fusionkit.report.display_names import family

# What is compared with is grey; near relatives do not have near colours.
FAMILIES: dict[str, tuple[str, str]] = {
    "last": ("#78828c", "circle"),
    "layer": ("#a3694a", "stroke"),
    "linear": ("#b27b00", "square"),
    "concat": ("#d8591a", "triangle-up"),
    "concat-affine": ("#d64b6a", "triangle-down"),
    "attention": ("#3f7de0", "diamond"),
    "dwatt": ("#b455c8", "cross"),
    "extra-layers": ("#3a9a3f", "triangle-right"),
    "element-wise": ("#16958c", "triangle-left"),
    "mlp-weights": ("#8b6fe0", "M0,-1L0.95,-0.31L0.59,0.81L-0.59,0.81L-0.95,-0.31Z"),
    "depth-lstm": ("#808a1e", "M-1,-0.4L1,-0.4L1,0.4L-1,0.4Z"),
}
OTHER = ("#78828c", "circle")
DASHES: tuple[list[int], ...] = ([1, 0], [5, 3], [2, 2], [8, 2, 2, 2])


def colour(method: str) -> str:
    """``#rrggbb`` of a method."""
    return FAMILIES.get(family(method), OTHER)[0]


def shape(method: str) -> str:
    """A Vega symbol, or an SVG path within a unit circle."""
    return FAMILIES.get(family(method), OTHER)[1]


def dashes(methods: Sequence[str]) -> list[list[int]]:
    """A dash pattern a method: a family's first is solid, its variants are not."""
    seen: Counter[str] = Counter()
    found = []
    for method in methods:
        found.append(DASHES[seen[family(method)] % len(DASHES)])
        seen[family(method)] += 1
    return found
