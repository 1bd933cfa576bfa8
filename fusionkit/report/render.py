"""Rendering figures: Vega-Lite specifications with their data, written as SVG, PNG and CSV."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fusionkit.errors import NothingFinishedError, UsageError, unknown_name
from fusionkit.io.files import write_durably
from fusionkit.metrics import CORRELATIONS, metric_name
from fusionkit.printable import spreadsheet_safe
from fusionkit.report.altair import vl_convert
from fusionkit.report.figures import FIGURES
from fusionkit.report.report_data import ReportData
from fusionkit.report.theme import THEMES, config

MOST_ROWS = 5000  # rows that a figure draws: each is a mark in the page, and Altair refuses more
PIXELS = 2.0  # pixels of a PNG per pixel of the SVG


@dataclass(frozen=True)
class RenderedFigure:
    """A figure of a study.

    Attributes:
        name: its key among the figures. caption: a description of the chart. data: its rows, as the CSV has them.
        spec: the Vega-Lite specification, with its data and without a theme.
    """

    name: str
    title: str
    caption: str
    data: pd.DataFrame
    spec: dict[str, Any]


def draw(study: ReportData, names: Sequence[str] | None = None) -> list[RenderedFigure]:
    """Figures of a study; without ``names`` all figures that it has data for.

    Raises:
        UsageError: an unknown name, or one that these runs have no data for; no run has finished.
    """
    for name in names or ():
        if name not in FIGURES:
            raise unknown_name("figure", name, FIGURES)
    if study.chosen.empty:
        raise NothingFinishedError("no run has finished", remedy="`fusionkit status` says what failed and why")
    drawn = []
    for name in names or FIGURES:
        figure = FIGURES[name]
        data = figure.data(study)
        if data is None or data.empty:
            if names is None:
                continue
            raise UsageError(
                f"these runs have no data for the figure {name!r}",
                expected=figure.needs,
                received=", ".join(map(str, study.folders)),
                remedy="leave the figure out, or fit what it needs",
            )
        shown, left_out = _thinned(data, figure.thinned_by)
        # Seven digits are enough for readers of a page; the CSV has all digits.
        spec = figure.chart(study, _short(_bounded(shown))).to_dict()
        spec.pop("config", None)
        caption = " ".join(part for part in (figure.caption, figure.about(data), left_out) if part)
        drawn.append(RenderedFigure(name, figure.title, caption, data, spec))
    return drawn


def write_figures(drawn: Iterable[RenderedFigure], folder: Path) -> list[Path]:
    """Write each figure as SVG, PNG and CSV, with its specification beside them; returns the files written."""
    library, files = vl_convert(), []
    for one in drawn:
        spec = json.dumps({**one.spec, "config": {**config("light"), "background": THEMES["light"]["paper"]}})
        svg = library.vegalite_to_svg(spec)
        content = {
            ".svg": svg.encode(),
            ".png": library.svg_to_png(svg, scale=PIXELS),
            ".csv": one.data.map(spreadsheet_safe).to_csv(index=False).encode(),
            ".vl.json": spec.encode(),
        }
        for suffix, bytes_ in content.items():
            path = folder / (one.name + suffix)
            write_durably(path, bytes_)
            files.append(path)
    return files


def _thinned(data: pd.DataFrame, by: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """At most :data:`MOST_ROWS` rows, and a sentence where some are left out. The rows that stay are those of evenly
    spaced values of ``by``, the first and the last among them; without ``by``, the first rows.
    """
    if len(data) <= MOST_ROWS:
        return data, ""
    shown, how = data, "the first"
    if by:
        number = data.groupby(list(by), sort=False, dropna=False).ngroup()
        count = int(number.max()) + 1
        kept = np.linspace(0, count - 1, max(2, count * MOST_ROWS // len(data))).round()
        shown, how = data[number.isin(kept)], f"evenly spaced by {' and '.join(by).replace('_', ' ')}"
    shown = shown.head(MOST_ROWS)
    return shown, f"Of {len(data):,} rows {len(shown):,} are drawn, {how}; the CSV that --figures writes has all."


def _bounded(data: pd.DataFrame) -> pd.DataFrame:
    """The data with intervals cut at 0 % (for correlations at -100 %) and at 100 %: a t interval of two seeds may end
    outside.

    Drawn in full they would leave the scores themselves no room; the CSV has them in full.
    """
    if not {"task", "low", "high"} <= set(data.columns):
        return data
    shares = data["task"].str.endswith("%)")
    correlated = data["task"].str.endswith(tuple(f"({metric_name(name)}, %)" for name in CORRELATIONS))
    low, high = data["low"].clip(lower=np.where(correlated, -100, 0)), data["high"].clip(upper=100)
    return data.assign(low=data["low"].where(~shares | (data["high"] < 0), low), high=data["high"].where(~shares, high))


def _short(data: pd.DataFrame) -> pd.DataFrame:
    numbers = data.select_dtypes("float").columns
    return data.assign(**{str(name): data[name].map(lambda value: float(f"{value:.7g}")) for name in numbers})
