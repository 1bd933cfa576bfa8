"""Late fusions: one file a fusion, one table of them all."""

from fusionkit.fusions.table import (
    FUSIONS,
    REGISTRY,
    Fusion,
    build_fusion,
    fusion_class,
    fusion_kind,
    fusion_layers,
    fusion_name,
    fusion_parameters,
    is_affine,
    sees_examples,
    takes_longest,
)
from fusionkit.options.spelling import named, options_of

__all__ = [
    "FUSIONS",
    "REGISTRY",
    "Fusion",
    "build_fusion",
    "fusion_class",
    "fusion_kind",
    "fusion_layers",
    "fusion_name",
    "fusion_parameters",
    "is_affine",
    "named",
    "options_of",
    "sees_examples",
    "takes_longest",
]
