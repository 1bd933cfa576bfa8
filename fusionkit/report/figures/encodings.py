"""Encodings that charts share: the colours of methods, panels by task, intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.display_names import in_order
from fusionkit.report.report_data import ReportData

WIDTH, HEIGHT = 230, 170  # of a panel, in pixels, unless the page sets another size
COLUMNS = 3
# Formats of numbers on an axis: 200k for parameters and steps; none for seconds, where 0.2 would become 200m.
COUNTS, SECONDS = dict.fromkeys(("parameters", "step", "bytes", "memory"), "~s"), ",.3~r"
GAP, NAMES = 24, 36  # pixels between panels, and for the axis labels beside a panel


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
    """An axis of whole numbers. Vega would also set ticks between whole numbers, and label them like one of these."""
    return altair().Axis(tickMinStep=1, format="d", tickCount=max(1, min(int(values.max() - values.min()), 10)))


def score_axis(field: str = "score") -> Any:
    """A vertical axis of scores whose ends are ticks: otherwise the titles of panels would be at different heights."""
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
    """One panel per value of ``by``, each with axes of its own in ``free``.

    The page arranges the panels for its width; ``usermeta`` tells it how.

    Args:
        order: the order of the values; None is that of the data. size: of a panel. names: pixels for the labels of its
            left axis. below: pixels for those of its lower axis. square: whether a panel never gets wider than this.
            pairs: whether the panels belong together two by two, so that a line must have an even number of them.
    """
    alt = altair()
    values = list(dict.fromkeys(data[by] if order is None else order))
    lines = math.ceil(len(values) / columns)
    columns = 2 if pairs else math.ceil(len(values) / max(lines, 1))  # four panels make two lines of two
    made = layers.properties(width=size[0], height=size[1]).facet(
        facet=alt.Facet(f"{by}:N", title=None, sort=values, header=alt.Header(labelLimit=320)),
        data=data,
        columns=max(min(columns, len(values)), 1),
        # ``flush`` aligns panels whatever their labels; the spacing leaves room for these.
        bounds="flush",
        spacing={"column": GAP + (names if "y" in free else 0), "row": 34 + below},
    )
    if free:
        made = made.resolve_scale(**dict.fromkeys(free, "independent"))
    # One scale, but an axis below every panel: the last line may have fewer panels than the others.
    made = made.resolve_axis(x="independent")
    meta = {"panels": len(values), "free": "y" in free, "names": names, "square": square, "below": below}
    meta |= {"pairs": True} if pairs else {}
    return made.properties(usermeta=meta)


def spread(mark: Any, value: str = "score") -> Any:
    """A mark from ``low`` to ``high``; of zero length where there is no interval, as for one run.

    A panel without any mark would have no axis, and Vega would warn.
    """
    ends = {
        at: f"isValid(datum.{name}) ? datum.{name} : datum.{value}" for at, name in (("from", "low"), ("to", "high"))
    }
    return mark.transform_calculate(**ends).encode(y=altair().Y("from:Q", title=None), y2="to:Q")


def tooltip(**fields: str) -> list[Any]:
    """The fields that are shown beside the pointer: titles by field. ``__n`` or ``__s`` behind a field is a number
    format.
    """
    alt = altair()
    found = []
    for name, title in fields.items():
        field, _, spec = name.partition("__")
        number = {"n": ",.4~g", "s": ".1f"}.get(spec)
        found.append(alt.Tooltip(f"{field}:Q", title=title, format=number) if number else
                     alt.Tooltip(f"{field}:N", title=title))  # fmt: skip
    return found
