"""The look of the charts: a colour and a shape for each fusion, and Vega-Lite's configuration in light, dark and the
page.

Each colour has a contrast of 3 or more to white and to the dark page, as WCAG 2.2 asks of graphics (1.4.11), and is
the same in every chart and report. Each fusion also has a shape, for readers who see few colours, and so has each
method that trains through the encoder. A fusion with options (``attention:scale=yes``) keeps the colour of the fusion
and is drawn dashed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fusionkit.fusions import fusion_kind
from fusionkit.report.display_names import family

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
# Paper, ink and quiet ink, a grid that hardly shows, and the full cell of a heat map: ink is legible on it too.
LIGHT = {"paper": "#ffffff", "ink": "#1b1f24", "quiet": "#57606a", "grid": "#e4e8ec", "cell": "#5b9be0"}
DARK = {"paper": "#14181d", "ink": "#e6e9ed", "quiet": "#a3adb8", "grid": "#2e353d", "cell": "#2a68ad"}
# In the page the style sheet decides, so that its theme changes, and paper gets ink, without drawing anything again.
PAGE = {name: f"var(--{name})" for name in LIGHT}
THEMES = {"light": LIGHT, "dark": DARK, "page": PAGE}

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
    "projected-attention": ("#6a7a12", "M0,-1L1,0.2L0.5,1L-0.5,1L-1,0.2Z"),
    "projected-ffn": ("#c9762f", "M-1,-1L1,-1L0.4,1L-0.4,1Z"),
    "ladder": ("#c2408f", "wedge"),
    "flat": ("#5f7f3a", "M-1,-1L1,-1L0,0L1,1L-1,1L0,0Z"),
    "element-wise": ("#16958c", "triangle-left"),
    "mlp-weights": ("#8b6fe0", "M0,-1L0.95,-0.31L0.59,0.81L-0.59,0.81L-0.95,-0.31Z"),
    "depth-lstm": ("#808a1e", "M-1,-0.4L1,-0.4L1,0.4L-1,0.4Z"),
}
# What trains through the encoder, whatever fusion it is under.
METHODS: dict[str, tuple[str, str]] = {
    "full": ("#d03a2f", "M0,-1.2L0.3,-0.3L1.2,0L0.3,0.3L0,1.2L-0.3,0.3L-1.2,0L-0.3,-0.3Z"),
    "top": ("#b04a4a", "M-1,0L0,-1L1,0L0.5,0L0.5,1L-0.5,1L-0.5,0Z"),
    "houlsby": ("#0b84a5", "M-1,-0.5L0,-1L1,-0.5L1,0.5L0,1L-1,0.5Z"),
    "lora": ("#1f8a5b", "M-1,-1L1,-1L1,-0.4L-0.4,-0.4L-0.4,1L-1,1Z"),
    "ia3": ("#5a8f8f", "M-0.4,-1L0.4,-1L0.4,1L-0.4,1Z"),
    "bitfit": ("#7a5cd6", "M-1,1L0,-0.2L1,1L0,0.5Z"),
    "diff-prune": ("#e0489a", "M-1,-1L0,-0.4L1,-1L0.4,0L1,1L0,0.4L-1,1L-0.4,0Z"),
    "prompt": ("#a8620f", "M-1,-0.8L0.2,-0.8L1,0L0.2,0.8L-1,0.8Z"),
    "prefix": ("#6f7a00", "M1,-0.8L-0.2,-0.8L-1,0L-0.2,0.8L1,0.8Z"),
    "pals": ("#9a5b8f", "M-1,-1L1,1L-1,1Z"),
    "low-rank": ("#4a7a9c", "M-1,1L1,-1L1,1Z"),
}
OTHER = ("#78828c", "circle")
DASHES: tuple[list[int], ...] = ([1, 0], [5, 3], [2, 2], [8, 2, 2, 2])


def config(theme: str) -> dict[str, Any]:
    """The Vega-Lite configuration of ``light``, ``dark`` or ``page``."""
    colours = THEMES[theme]
    text = {"labelColor": colours["quiet"], "titleColor": colours["quiet"]}
    return {
        "background": None,
        "font": FONT,
        "padding": 2,
        "axis": {
            **text,
            "domainColor": colours["grid"],
            "gridColor": colours["grid"],
            "tickColor": colours["grid"],
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "titlePadding": 6,
            "tickSize": 4,
        },
        "axisX": {"grid": False, "domainColor": colours["quiet"], "tickColor": colours["quiet"]},
        "axisBand": {"grid": False, "domain": False, "ticks": False},
        "header": {
            "labelColor": colours["ink"],
            "labelFontSize": 12,
            "labelFontWeight": 600,
            "labelAnchor": "start",
            "labelPadding": 6,
        },
        "legend": {**text, "labelColor": colours["ink"], "labelFontSize": 12, "orient": "top", "columns": 6,
                   "titleFontSize": 11, "titleFontWeight": "normal", "symbolStrokeWidth": 2,
                   "symbolOpacity": 1, "labelLimit": 260},
        "title": {"anchor": "start", "frame": "group", "fontSize": 12, "fontWeight": 600, "color": colours["ink"]},
        "view": {"stroke": None},
        "facet": {"spacing": 22},
        "style": {
            "heat": {"color": colours["cell"], "fill": colours["cell"]},
            "on-heat": {"color": colours["ink"], "fill": colours["ink"]},
        },
    }  # fmt: skip


def colour(method: str) -> str:
    """``#rrggbb`` of a method."""
    return _look(method)[0]


def shape(method: str) -> str:
    """A Vega symbol, or an SVG path within a unit circle."""
    return _look(method)[1]


def _look(method: str) -> tuple[str, str]:
    """Of ``last · houlsby:64`` that of houlsby, of ``attention`` and others that of the fusion."""
    _, _, through = method.partition(" · ")
    return METHODS.get(fusion_kind(through.split(" ", 1)[0]), FAMILIES.get(family(method), OTHER))


def dashes(methods: Sequence[str]) -> list[list[int]]:
    """A dash pattern a method: a family's first is solid, its variants are not."""
    seen: Counter[str] = Counter()
    found = []
    for method in methods:
        found.append(DASHES[seen[family(method)] % len(DASHES)])
        seen[family(method)] += 1
    return found
