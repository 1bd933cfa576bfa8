"""Vega-Lite's configuration of the charts: in the light and the dark theme, and in the page."""

from __future__ import annotations

from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
# paper: background; ink: text; quiet: secondary text; grid: faint lines; cell: full cell of a heat map, which is light
# or dark enough for text in ink.
LIGHT = {"paper": "#ffffff", "ink": "#1b1f24", "quiet": "#57606a", "grid": "#e4e8ec", "cell": "#5b9be0"}
DARK = {"paper": "#14181d", "ink": "#e6e9ed", "quiet": "#a3adb8", "grid": "#2e353d", "cell": "#2a68ad"}
# In the page colours come from the style sheet, so that charts follow a change of theme, and print in the light theme,
# without being drawn again.
PAGE = {name: f"var(--{name})" for name in LIGHT}
THEMES = {"light": LIGHT, "dark": DARK, "page": PAGE}


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
