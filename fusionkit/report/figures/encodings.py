"""Encodings that charts share: the colours of methods, panels by task, intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionkit.report.altair import altair
from fusionkit.report.display_names import in_order
from fusionkit.report.report_data import ReportData
from fusionkit.statistics import INTERVALS

WIDTH, HEIGHT = 230, 170  # of a panel, in pixels, where no page says otherwise
COLUMNS = 3
# Of numbers on an axis: 200k parameters and steps; seconds without a prefix, which would make 200m of a fifth.
COUNTS, SECONDS = {"parameters": "~s", "step": "~s"}, ",.3~r"
GAP, NAMES = 24, 36  # between panels, and beside one for the labels of its axis


def methods_of(data: pd.DataFrame) -> list[str]:
    """The methods in some data, in the order of the table of fusions."""
    return in_order(data["method"].tolist())


def colours_of(study: ReportData, methods: Sequence[str]) -> Any:
    alt = altair()
    return alt.Color("method:N", title=None, scale=_scale(study, methods, "colour"), legend=alt.Legend(symbolSize=70))


def shapes_of(study: ReportData, methods: Sequence[str]) -> Any:
    return altair().Shape("method:N", title=None, scale=_scale(study, methods, "shape"))


def dashes_of(study: ReportData, methods: Sequence[str]) -> Any:
    return altair().StrokeDash("method:N", title=None, scale=_scale(study, methods, "dashes"))


def _scale(study: ReportData, methods: Sequence[str], part: str) -> Any:
    styles = study.styles(methods)
    return altair().Scale(domain=list(methods), range=[getattr(styles[method], part) for method in methods])


def whole_numbers(values: pd.Series[Any]) -> Any:
    """An axis of whole numbers: between two neighbours Vega would set a tick that is labelled like one of them."""
    return altair().Axis(tickMinStep=1, format="d", tickCount=max(1, min(int(values.max() - values.min()), 10)))


def score_axis(field: str = "score") -> Any:
    """A vertical axis of scores whose ends are ticks: without that the titles of panels stand at unlike heights."""
    alt, ticks = altair(), 5
    scale, axis = alt.Scale(zero=False, nice=ticks), alt.Axis(tickCount=ticks)
    return alt.Y(f"{field}:Q", title=None, scale=scale, axis=axis)


def shade(field: str) -> Any:
    """The opacity of a cell of a heat map. The colour stays the same, so that a page can change its theme."""
    alt = altair()
    return alt.FillOpacity(f"{field}:Q", scale=alt.Scale(domain=[0, 1], range=[0.05, 1]), legend=None)


def panels(
    layers: Any,
    data: pd.DataFrame,
    by: str,
    order: Iterable[str] | None = None,
    *,
    free: Sequence[str] = ("y",),
    size: tuple[int, Any] = (WIDTH, HEIGHT),
    names: int = NAMES,
    below: int = 40,
    columns: int = COLUMNS,
    square: bool = False,
    pairs: bool = False,
) -> Any:
    """One panel a value of ``by``, each with axes of its own in ``free``.

    The page lays the panels out for its width: ``usermeta`` tells it what it must know for that.

    Args:
        order: of the values, that of the data unless given. size: of a panel. names: pixels that the labels of its
            left axis take. below: those of its lower axis. square: its width is never more than this. pairs: the first
            two panels belong together, and so on: a line has an even number.
    """
    alt = altair()
    values = list(dict.fromkeys(data[by] if order is None else order))
    lines = math.ceil(len(values) / columns)
    columns = 2 if pairs else math.ceil(len(values) / max(lines, 1))  # four panels make two lines of two
    made = layers.properties(width=size[0], height=size[1]).facet(
        facet=alt.Facet(f"{by}:N", title=None, sort=values, header=alt.Header(labelLimit=320)),
        data=data,
        columns=max(min(columns, len(values)), 1),
        # Panels stand on one line whatever their labels; room for these is kept by hand.
        bounds="flush",
        spacing={"column": GAP + (names if "y" in free else 0), "row": 34 + below},
    )
    if free:
        made = made.resolve_scale(**dict.fromkeys(free, "independent"))
    # One scale, but an axis below every panel: the last line may be shorter than the others.
    made = made.resolve_axis(x="independent")
    meta = {"panels": len(values), "free": "y" in free, "names": names, "square": square, "below": below}
    meta |= {"pairs": True} if pairs else {}
    return made.properties(usermeta=meta)


def spread(mark: Any, value: str = "score") -> Any:
    """A mark from ``low`` to ``high``, and of no length where there is no interval: of one run.

    A panel in which no mark has a place at all would have no axis, of which Vega warns.
    """
    ends = {
        at: f"isValid(datum.{name}) ? datum.{name} : datum.{value}" for at, name in (("from", "low"), ("to", "high"))
    }
    return mark.transform_calculate(**ends).encode(y=altair().Y("from:Q", title=None), y2="to:Q")


def interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean and 95 % t interval of some scores ``[n]``, those that are finite; of one score there is no interval."""
    scores = values[np.isfinite(values)]
    if not len(scores):
        return np.nan, np.nan, np.nan
    return float(scores.mean()), *INTERVALS["t"](scores)


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
