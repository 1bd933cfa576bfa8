"""Encodings that charts share: the colours of methods, panels by task, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.colours import colour, dashes, shape
from fusionkit.report.display_names import in_order
from fusionkit.statistics import INTERVALS

WIDTH, HEIGHT = 230, 170  # of a panel, in pixels, where no page says otherwise
COLUMNS = 3
GAP, NAMES = 24, 36  # between panels, and beside one for the labels of its axis


def methods_of(data: pd.DataFrame) -> list[str]:
    """The methods in some data, in the order of the table of fusions."""
    return in_order(data["method"].tolist())


def hue(methods: Sequence[str]) -> Any:
    """The colour of each method."""
    alt = altair()
    scale = alt.Scale(domain=list(methods), range=[colour(method) for method in methods])
    return alt.Color("method:N", title=None, scale=scale, legend=alt.Legend(symbolSize=70))


def form(methods: Sequence[str]) -> Any:
    """The shape of each method."""
    alt = altair()
    scale = alt.Scale(domain=list(methods), range=[shape(method) for method in methods])
    return alt.Shape("method:N", title=None, scale=scale)


def dash(methods: Sequence[str]) -> Any:
    """Solid lines for fusions in their plain form, dashes for their variants."""
    alt = altair()
    return alt.StrokeDash("method:N", title=None, scale=alt.Scale(domain=list(methods), range=dashes(methods)))


def shade(field: str) -> Any:
    """The opacity of a cell of a heat map. The colour stays the same, so that a page can change its theme."""
    alt = altair()
    return alt.FillOpacity(f"{field}:Q", scale=alt.Scale(domain=[0, 1], range=[0.05, 1]), legend=None)


def panels(
    layers: Any,
    data: pd.DataFrame,
    by: str,
    order: Sequence[str],
    *,
    free: Sequence[str] = ("y",),
    size: tuple[int, Any] = (WIDTH, HEIGHT),
    names: int = NAMES,
    below: int = 40,
    columns: int = COLUMNS,
    square: bool = False,
) -> Any:
    """One panel a value of ``by``, each with axes of its own in ``free``.

    The page lays the panels out for its width: ``usermeta`` tells it what it must know for that.

    Args:
        size: of a panel. names: pixels that the labels of its left axis take. below: those of its lower axis.
        square: its width is never more than this.
    """
    alt = altair()
    values = [value for value in order if value in set(data[by])]
    made = layers.properties(width=size[0], height=size[1]).facet(
        facet=alt.Facet(f"{by}:N", title=None, sort=values, header=alt.Header(labelLimit=320)),
        data=data,
        columns=min(columns, len(values)),
        # Panels stand on one line whatever their labels; room for these is kept by hand.
        bounds="flush",
        spacing={"column": GAP + (names if "y" in free else 0), "row": 34 + below},
    )
    if free:
        made = made.resolve_scale(**dict.fromkeys(free, "independent"))
    # One scale, but an axis below every panel: the last line may be shorter than the others.
    made = made.resolve_axis(x="independent")
    meta = {"panels": len(values), "free": "y" in free, "names": names, "square": square, "below": below}
    return made.properties(usermeta=meta)


def means(x: Any, data: pd.DataFrame, **told: str) -> Any:
    """A line a method through its ``score`` at each place of an axis, its interval from ``low`` to ``high`` as a bar.

    Args:
        x: the axis. told: further fields that stand beside the pointer, with their titles.
    """
    alt = altair()
    methods = methods_of(data)
    base = alt.Chart().encode(x=x, color=hue(methods))
    score = alt.Y("score:Q", title=None, scale=alt.Scale(zero=False))
    shown = tooltip(method="method", **told, score__s="mean", low__s="from", high__s="to", runs="runs")
    line = base.mark_line(strokeWidth=2).encode(y=score, strokeDash=dash(methods))
    bars = spread(base.mark_rule(strokeWidth=1, opacity=0.55))
    points = base.mark_point(filled=True, size=50, opacity=1).encode(y=score, shape=form(methods), tooltip=shown)
    return alt.layer(bars, line, points)


def spread(mark: Any, value: str = "score") -> Any:
    """A mark from ``low`` to ``high``, and of no length where there is no interval: of one run.

    A panel in which no mark has a place at all would have no axis, of which Vega warns.
    """
    ends = {
        at: f"isValid(datum.{name}) ? datum.{name} : datum.{value}" for at, name in (("from", "low"), ("to", "high"))
    }
    return mark.transform_calculate(**ends).encode(y=altair().Y("from:Q", title=None), y2="to:Q")


def interval(values: pd.Series[Any]) -> tuple[float, float, float]:
    """Mean and 95 % t interval of some scores; of one score there is none."""
    scores = values.to_numpy(dtype=np.float64)
    scores = scores[np.isfinite(scores)]
    if not len(scores):
        return np.nan, np.nan, np.nan
    low, high = INTERVALS["t"](scores)
    return float(scores.mean()), low, high


def tooltip(**fields: str) -> list[Any]:
    """What is shown beside the pointer: titles by field, numbers with few digits."""
    alt = altair()
    found = []
    for name, title in fields.items():
        field, _, spec = name.partition("__")
        number = {"n": ",.4~g", "s": ".1f"}.get(spec)
        found.append(alt.Tooltip(f"{field}:Q", title=title, format=number) if number else
                     alt.Tooltip(f"{field}:N", title=title))  # fmt: skip
    return found
