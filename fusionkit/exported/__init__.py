"""Exported heads: a run written as a self-contained folder, and heads found in such folders or on the hub."""

from typing import TYPE_CHECKING

from fusionkit.exported.finding import find_heads, open_heads
from fusionkit.lazy import lazily

if TYPE_CHECKING:
    from fusionkit.exported.head import FusedHead, export_best_of_each, export_run

__all__ = ["FusedHead", "export_best_of_each", "export_run", "find_heads", "open_heads"]

# They load torch.
__getattr__ = lazily(__name__, {"fusionkit.exported.head": ("FusedHead", "export_best_of_each", "export_run")})
