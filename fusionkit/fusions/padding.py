"""Examples side by side, a line each, and back: with gradients that are taken as the rows are.

    laid:   y_p = x_places(p)          dx_i = dy_own(i)
    taken:  x_i = y_own(i)             dy_p = dx_places(p) where p is a row's own place, else 0

Symbols: ``i`` a row, ``p`` a place in a line, ``own(i)`` the place of row i; behind an example's end a place shows some
row. What is read there must count for nothing, so that no gradient comes from it: attention masks it. Autograd, which
cannot know that, would add the gradients up row by row, and ``torch.func.vmap`` of it number by number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusionkit.ragged import side_by_side


class PaddedExamples:
    """How the rows of some examples lie in lines.

    Attributes:
        seen: bool ``[examples, longest]``, the places to attend to: those of rows, and the first of a line without any,
            over which a softmax would otherwise make all gradients NaN.
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
        if self._whole:
            return rows
        found: Tensor = _Pad.apply(rows, self._places, self._own)  # type: ignore[no-untyped-call]
        return found

    def taken(self, places: Tensor) -> Tensor:
        """``[examples · longest, d]`` → ``[rows, d]``."""
        if self._whole:
            return places
        found: Tensor = _Unpad.apply(places, self._places, self._own, self._mask)  # type: ignore[no-untyped-call]
        return found


def _chosen(rows: Tensor, at: Tensor) -> Tensor:
    """``[n, d]`` or, of several runs, ``[R, n, d]`` → ``[…, len(at), d]``."""
    if rows.dim() == 2:
        return rows.index_select(0, at)
    # Whole rows of one long list are copied as they lie; along another axis they would be gathered number by number.
    runs, count, width = rows.shape
    every = (torch.arange(runs, device=at.device).unsqueeze(1) * count + at).flatten()
    return rows.reshape(-1, width).index_select(0, every).view(runs, len(at), width)


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, places: Tensor, own: Tensor) -> Tensor:
        return _chosen(rows, places)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], rows: Tensor, places: Tensor, own: Tensor
    ) -> tuple[Tensor, int]:
        found: Tensor = _Pad.apply(rows.movedim(in_dims[0] or 0, 0), places, own)  # type: ignore[no-untyped-call]
        return found, 0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _chosen(gradients[0], ctx.saved_tensors[0]), None, None


class _Unpad(torch.autograd.Function):
    @staticmethod
    def forward(laid: Tensor, places: Tensor, own: Tensor, mask: Tensor) -> Tensor:
        return _chosen(laid, own)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], inputs[3])

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], laid: Tensor, places: Tensor, own: Tensor, mask: Tensor
    ) -> tuple[Tensor, int]:
        found: Tensor = _Unpad.apply(laid.movedim(in_dims[0] or 0, 0), places, own, mask)  # type: ignore[no-untyped-call]
        return found, 0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        places, mask = ctx.saved_tensors
        return _chosen(gradients[0], places) * mask.unsqueeze(1), None, None, None
