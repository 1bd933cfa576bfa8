"""Examples side by side, a line each, and back: with gradients that are taken as the rows are.

    laid:   y_p = x_places(p)          dx_i = dy_own(i)
    taken:  x_i = y_own(i)             dy_p = dx_places(p) where p is a row's own place, else 0

Symbols: ``i`` a row, ``p`` a place in a line, ``own(i)`` the place of row i; behind an example's end a place shows some
row. Attention masks these places, so they have no effect and get no gradient. Autograd, which cannot know that, would
add the gradients up row by row, and ``torch.func.vmap`` of it number by number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusionkit.ragged import side_by_side


class PaddedExamples:
    """The places of the rows of some examples in lines of equal length.

    Attributes:
        seen: bool ``[examples, longest]``, the places to attend to: the places of rows, and the first place of a line
            without rows: a softmax over no places would make all gradients NaN.
    """

    def __init__(self, offsets: Tensor) -> None:
        places, mask = side_by_side(offsets)
        self._places, self._mask = places.flatten(), mask.flatten()  # [examples · longest]
        self._own = self._mask.nonzero().squeeze(1)  # [rows]
        self._whole = len(self._own) == len(self._mask)
        self.seen = mask.clone()
        self.seen[:, :1] = True

    def laid(self, rows: Tensor) -> Tensor:
        """``[rows, d]`` → ``[examples · longest, d]``."""
        return rows if self._whole else _moved(rows, self._places, self._own, None)

    def taken(self, places: Tensor) -> Tensor:
        """``[examples · longest, d]`` → ``[rows, d]``."""
        return places if self._whole else _moved(places, self._own, self._places, self._mask)


def _chosen(rows: Tensor, at: Tensor) -> Tensor:
    """``[n, d]`` or, of several runs, ``[R, n, d]`` → ``[…, len(at), d]``."""
    if rows.dim() == 2:
        return rows.index_select(0, at)
    # Whole rows of one long list are copied as they lie; along another axis they would be gathered number by number.
    runs, count, width = rows.shape
    every = (torch.arange(runs, device=at.device).unsqueeze(1) * count + at).flatten()
    return rows.reshape(-1, width).index_select(0, every).view(runs, len(at), width)


class _Move(torch.autograd.Function):
    """Rows from the places ``to``; the gradient from the places ``back``, where ``mask`` lets it through."""

    @staticmethod
    def forward(rows: Tensor, to: Tensor, back: Tensor, mask: Tensor | None) -> Tensor:
        return _chosen(rows, to)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], rows: Tensor, to: Tensor, back: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, int]:
        return _moved(rows.movedim(in_dims[0] or 0, 0), to, back, mask), 0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        back, mask = ctx.saved_tensors
        found = _chosen(gradients[0], back)
        return found if mask is None else found * mask.unsqueeze(1), None, None, None


def _moved(rows: Tensor, to: Tensor, back: Tensor, mask: Tensor | None) -> Tensor:
    found: Tensor = _Move.apply(rows, to, back, mask)  # type: ignore[no-untyped-call]
    return found
