"""The table of figures."""

from fusionkit.report.figures.figure import Figure
from fusionkit.report.figures.table import FIGURES

__all__ = ["FIGURES", "Figure"]
