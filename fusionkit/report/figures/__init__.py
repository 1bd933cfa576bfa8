"""The table of figures."""

from fusionkit.report.figures.table import FIGURES, Figure

__all__ = ["FIGURES", "Figure"]
