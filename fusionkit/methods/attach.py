"""Putting a method in effect in a model."""

from __future__ import annotations

from typing import Any

from fusionkit.errors import UsageError
from fusionkit.methods.attached import PARTS, Attached
from fusionkit.methods.structure import structure_of
from fusionkit.methods.table import MethodSpec


def apply(model: Any, spec: MethodSpec) -> Attached:
    """Put a method in effect in a model, in place.

    Args:
        model: a ``transformers.PreTrainedModel`` without a method; its weights may lie on the meta device.

    Raises:
        UsageError: this encoder cannot take the method.
    """
    if hasattr(model, PARTS):
        raise UsageError(
            f"{type(model).__name__} has a method already",
            expected="an encoder as it was loaded",
            received="one with a method's parts",
            remedy="take the other one out with detach(), or load the encoder again",
        )
    return spec.build().attach(model, structure_of(model))
