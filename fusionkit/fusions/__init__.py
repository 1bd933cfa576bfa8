"""Late fusions: one file a fusion, one table of them all."""

from fusionkit.fusions.spelling import named, options_of, usage
from fusionkit.fusions.table import FUSIONS, Fusion, build_fusion, fusion_layers, fusion_name, sees_examples

__all__ = [
    "FUSIONS",
    "Fusion",
    "build_fusion",
    "fusion_layers",
    "fusion_name",
    "named",
    "options_of",
    "sees_examples",
    "usage",
]
