"""One layer alone: ``z_k``, the probe of a single layer; ``k`` may be negative (``layer:-2``)."""

from __future__ import annotations

from torch import Tensor, nn

from fusionkit.errors import UsageError


class Layer(nn.Module):
    """``z_k``; no parameters. Built over the one layer that :meth:`reads` names."""

    is_affine = True

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.width = hidden

    @staticmethod
    def reads(last: int, chosen: tuple[int, ...] | None = None, *, k: int) -> tuple[int, ...]:
        """Layer ``k`` of 0 … ``last``, whatever is chosen.

        Raises:
            UsageError: there is no such layer.
        """
        if not -last - 1 <= k <= last:
            raise UsageError(
                "this layer does not exist",
                expected=f"layer:k with k from {-last - 1} to {last}",
                received=f"layer:{k}",
                remedy="choose a layer of this encoder",
            )
        return (k % (last + 1),)

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """``[…, 1, hidden]`` → ``[…, hidden]``."""
        return states[..., 0, :]
