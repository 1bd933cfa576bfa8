"""Vega-Lite's configuration of the charts: in files, and in the page."""

from __future__ import annotations

from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
# paper: background; ink: text; quiet: secondary text; grid: faint lines; cell: full cell of a heat map, which is light
# enough for text in ink. These are the light theme of page.css.
LIGHT = {"paper": "#ffffff", "ink": "#1b1f24", "quiet": "#57606a", "grid": "#e4e8ec", "cell": "#5b9be0"}
# In the page colours come from the style sheet, so that charts follow a change of theme, and print in the light theme,
# without being drawn again.
PAGE = {name: f"var(--{name})" for name in LIGHT}
THEMES = {"light": LIGHT, "page": PAGE}


def config(theme: str) -> dict[str, Any]:
    """The Vega-Lite configuration of ``light``, for files, or ``page``."""
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
                   "titleFontSize": 11, "titleFontWeight": "normal", "symbolStrokeWidth": 0,
                   "symbolOpacity": 1, "labelLimit": 260},
        "title": {"anchor": "start", "frame": "group", "fontSize": 12, "fontWeight": 600, "color": colours["ink"]},
        "view": {"stroke": None},
        "facet": {"spacing": 22},
        "style": {
            "heat": {"color": colours["cell"], "fill": colours["cell"]},
            "on-heat": {"color": colours["ink"], "fill": colours["ink"]},
        },
    }  # fmt: skip
