"""Trained heads to give away: a run as a self-contained folder, and heads found in such folders or on the hub."""

from fusionkit.exported.finding import find_heads, open_heads
from fusionkit.exported.head import FusedHead, export_best_of_each, export_run

__all__ = ["FusedHead", "export_best_of_each", "export_run", "find_heads", "open_heads"]
