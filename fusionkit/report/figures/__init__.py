"""The table of figures."""

from fusionkit.report.figures.table import FIGURES

__all__ = ["FIGURES"]
