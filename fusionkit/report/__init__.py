"""The report: figures of runs as files, and one page of them that opens offline."""

from fusionkit.report.figures import FIGURES
from fusionkit.report.write import ReportFacts, draw_figures, write_report

__all__ = ["FIGURES", "ReportFacts", "draw_figures", "write_report"]
