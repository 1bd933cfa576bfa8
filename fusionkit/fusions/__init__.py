"""Late fusions: one file a fusion, one table of them all."""

from fusionkit.fusions.table import FUSIONS, Fusion, build_fusion, fusion_layers

__all__ = ["FUSIONS", "Fusion", "build_fusion", "fusion_layers"]
