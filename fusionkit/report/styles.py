"""The style of each method of a report: a colour, a shape and a dash pattern, the same in all of its charts.

Each fusion over frozen states has a style that is the same in every report; the first of its variants gets it. Other
variants, and fusions with a method that trains through the encoder, get a style that the report does not use yet: the
one whose colour is furthest from those in use, for normal, red-blind and green-blind vision (Machado, Oliveira and
Fernandes 2009; distances in Oklab, Ottosson 2020).

Each colour has a contrast of 3 or more to white and to the dark page, as WCAG 2.2 asks of graphics (1.4.11).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusionkit.report.display_names import family


class Style(NamedTuple):
    """``#rrggbb``, a Vega symbol or an SVG path within a unit circle, and a dash pattern."""

    colour: str
    shape: str
    dashes: tuple[int, ...] = (1, 0)


# ``last``, the default baseline, is grey. Any two colours are 0.045 apart or more by :func:`distance`.
FAMILIES = {
    "last": Style("#777f92", "circle"),
    "layer": Style("#ae6154", "M-0.3,-1L0.3,-1L0.3,1L-0.3,1Z"),
    "linear": Style("#d77f0b", "square"),
    "concat": Style("#a44c02", "triangle-up"),
    "concat-affine": Style("#9c4a61", "triangle-down"),
    "attention": Style("#7886fc", "diamond"),
    "dwatt": Style("#9c3bac", "cross"),
    "extra-layers": Style("#54a280", "triangle-right"),
    "projected-attention": Style("#476f2a", "M0,-1L1,0.2L0.5,1L-0.5,1L-1,0.2Z"),
    "projected-ffn": Style("#d37b61", "M-1,-1L1,-1L0.4,1L-0.4,1Z"),
    "ladder": Style("#ed5bc8", "M0,-1L1,1L0,0.3L-1,1Z"),
    "flat": Style("#28a802", "M-1,-1L1,-1L0,0L1,1L-1,1L0,0Z"),
    "element-wise": Style("#03737e", "triangle-left"),
    "mlp-weights": Style("#9e55d5", "M0,-1L0.95,-0.31L0.59,0.81L-0.59,0.81L-0.95,-0.31Z"),
    "depth-lstm": Style("#8f790d", "M-1,-0.4L1,-0.4L1,0.4L-1,0.4Z"),
}
OTHER = FAMILIES["last"]
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (5, 3), (2, 2), (8, 2, 2, 2))
VISIONS = np.array([
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],  # red-blind
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],  # green-blind
])  # fmt: skip
LMS = np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
LAB = np.array([[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip


def styles_of(methods: Sequence[str], more: Sequence[str] = ()) -> dict[str, Style]:
    """The style of each of a report's methods, and of ``more`` names that only one chart has. Such a name gets the
    style of a method of the report with the same fusion and method, if there is one.
    """
    found: dict[str, Style] = {}
    before: Counter[tuple[str, str]] = Counter()
    order = []
    for method in methods:
        order.append((before[_kind(method)], " · " in method, method))
        before[_kind(method)] += 1
    # The first method of each kind before its variants, plain fusions before those that train through the encoder.
    for *_, method in sorted(order, key=lambda each: each[:2]):
        found[method] = _choose(method, found)
    for name in more:
        if name not in found:
            like = next((found[method] for method in methods if _kind(method) == _kind(name)), None)
            found[name] = like or _choose(name, found)
    return found


def _kind(method: str) -> tuple[str, str]:
    """The fusion and the method of a name, both without options: ``last``, ``houlsby`` for ``last · houlsby:8``."""
    through = method.partition(" · ")[2]
    return family(method), through.partition(":")[0]


def _choose(method: str, found: dict[str, Style]) -> Style:
    taken = {style.colour for style in found.values()}
    own = FAMILIES.get(family(method), OTHER)
    free = [style for style in FAMILIES.values() if style.colour not in taken]
    chosen = own
    if free and (own not in free or " · " in method):
        chosen = max(free, key=lambda style: min((distance(style.colour, colour) for colour in taken), default=0))
    alike = sum(family(other) == family(method) for other in found)
    return chosen._replace(dashes=DASHES[alike % len(DASHES)])


@cache
def distance(one: str, other: str) -> float:
    """The least distance of two ``#rrggbb`` in Oklab over :data:`VISIONS`; between black and white it is 1."""
    return float(np.linalg.norm(_oklab(one) - _oklab(other), axis=-1).min())


@cache
def _oklab(colour: str) -> NDArray[np.float64]:
    """A colour as each of :data:`VISIONS` sees it, in Oklab ``[visions, 3]``."""
    parts = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    seen = np.clip(VISIONS @ linear, 0, 1)
    return np.cbrt(seen @ LMS.T) @ LAB.T  # type: ignore[no-any-return]
