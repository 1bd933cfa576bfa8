"""What a figure is: a name for readers, its data, and the chart of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fusionkit.report.predictions import AllPredictions
from fusionkit.report.report_data import ReportData


def _nothing(data: pd.DataFrame) -> str:
    return ""


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        title: what stands above it. caption: what one sees, with units. needs: what runs must have for it.
        data: its tidy data, or None where these runs have none. chart: of a study and that data an Altair chart.
        about: what is only known of the data, in a sentence.
    """

    title: str
    caption: str
    needs: str
    data: Callable[[ReportData, AllPredictions], pd.DataFrame | None]
    chart: Callable[[ReportData, pd.DataFrame], Any]
    about: Callable[[pd.DataFrame], str] = _nothing
