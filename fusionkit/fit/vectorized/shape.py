"""Which runs can share a stack."""

from __future__ import annotations

from typing import Any

from fusionkit.specs import RunSpec


def shape_of(spec: RunSpec) -> tuple[Any, ...]:
    """What runs of one stack share; rates, decays, schedules, clipping, lengths and seeds are each run's own."""
    return (
        spec.fusion, spec.fusion_layers, spec.head, spec.dropout, spec.label_smoothing, spec.class_weights,
        spec.optimizer, spec.joint_fusion, spec.freeze, spec.init_part, spec.compute_dtype,
    )  # fmt: skip
