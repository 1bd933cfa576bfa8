"""What ``ladder`` and ``flat`` share: the width beside the encoder, and the layers of that width."""

from __future__ import annotations

from fusionkit.errors import UsageError
from fusionkit.fusions.transformer_layer import TransformerLayer

HEAD, DROPOUT = 12, 0.1


def narrow_width(fusion: str, hidden: int, r: int) -> int:
    """``hidden // r``.

    Raises:
        UsageError: r is below 1 or above ``hidden``.
    """
    if not 1 <= r <= hidden:
        raise UsageError(
            f"{fusion} cannot be so narrow" if r > hidden else f"{fusion} cannot be so wide",
            expected=f"{fusion}:r with r from 1 to {hidden}, the width of the states",
            received=f"{fusion}:{r}",
            remedy=f"choose --fusion {fusion}:8",
        )
    return hidden // r


def narrow_layer(width: int) -> TransformerLayer:
    """A transformer layer of this width with heads of 12 and dropout 0.1."""
    return TransformerLayer(width, head=HEAD, dropout=DROPOUT)
