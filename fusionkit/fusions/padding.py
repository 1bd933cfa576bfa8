"""Examples side by side, a line each, and back: with gradients that are taken as the rows are.

    laid:   y_p = x_places(p)          dx_i = dy_own(i)
    taken:  x_i = y_own(i)             dy_p = dx_places(p) where p is a row's own place, else 0

Symbols: ``i`` a row, ``p`` a place in a line, ``own(i)`` the place of row i; behind an example's end a place shows its
last row. Attention masks these places, so they have no effect and get no gradient. Autograd, which cannot know that, would
add the gradients up row by row, and ``torch.func.vmap`` of it number by number.

Attention costs the square of a line's length. So examples are grouped by length on a CPU, and the lines of a group are
as long as its longest example. Each head of a row has lines of its own: products then read memory as it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusionkit.ragged import IntArray

SHORT = 16  # rows; shorter lines are not worth a group of their own
LIKE = 1.5  # times as long as the shortest line of a group its longest may be


class PaddedExamples:
    """The places of the rows of some examples in lines.

    Args:
        offsets: int64 ``[examples + 1]``, of the examples in the rows; there is a row. heads: of a row.
    """

    def __init__(self, offsets: Tensor, heads: int) -> None:
        device, bounds = offsets.device, offsets.cpu().numpy()
        lengths = np.diff(bounds)
        order = np.argsort(lengths, kind="stable")[::-1]
        places, own = list[IntArray](), np.empty((bounds[-1], heads), dtype=np.int64)
        self._shapes, self._hidden, count = list[tuple[int, int]](), list[Tensor](), 0
        for examples in np.split(order, _cuts(lengths[order]) if device.type == "cpu" else []):
            longest = max(int(lengths[examples[0]]), 1)
            steps = np.arange(longest)
            seen = steps < lengths[examples, None]  # [examples, longest]
            # Behind its end an example's own last row: a row of another one, which may be NaN, would reach it as 0 · NaN.
            rows = np.minimum(bounds[examples, None] + steps, bounds[examples + 1, None] - 1).clip(0)
            each = rows[:, None] * heads + np.arange(heads)[:, None]  # [examples, heads, longest]
            at = count + np.arange(each.size).reshape(each.shape).transpose(0, 2, 1)  # [examples, longest, heads]
            own[rows[seen]] = at[seen]
            places.append(each.ravel())
            seen[:, 0] = True  # a softmax over no places would make all gradients NaN
            hidden = torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf)))
            self._hidden.append(hidden.repeat_interleave(heads, 0).unsqueeze(1).to(device))
            self._shapes.append((len(examples) * heads, longest))
            count += each.size
        self._heads = heads
        self._own = torch.from_numpy(own.ravel()).to(device)  # [rows · heads]
        self._places = torch.from_numpy(np.concatenate(places)).to(device)  # [places]
        mask = torch.zeros(count, dtype=torch.bool)
        mask[torch.from_numpy(own.ravel())] = True
        self._mask = mask.to(device)

    def laid(self, rows: Tensor) -> Tensor:
        """``[rows, d]`` → ``[places, d / heads]``."""
        return _moved(rows.reshape(-1, rows.shape[-1] // self._heads), self._places, self._own, None)

    def lines(self, places: Tensor) -> list[Tensor]:
        """``[places, d / heads]`` → of each group ``[lines, longest, d / heads]``, a line a head of an example."""
        parts = places.split([lines * longest for lines, longest in self._shapes])
        return [part.view(*shape, -1) for part, shape in zip(parts, self._shapes, strict=True)]

    def hidden(self, dtype: torch.dtype) -> list[Tensor]:
        """Of each group ``[lines, 1, longest]``: what is added to scores, 0 where a place has a row, else −∞."""
        return [hidden.to(dtype) for hidden in self._hidden]

    def taken(self, lines: Sequence[Tensor]) -> Tensor:
        """What :meth:`lines` gives → ``[rows, d]``."""
        places = torch.cat([line.flatten(0, 1) for line in lines])
        rows = _moved(places, self._own, self._places, self._mask)  # [rows · heads, d / heads]
        return rows.reshape(-1, self._heads * rows.shape[-1])


def _cuts(lengths: IntArray) -> list[int]:
    """Where groups begin among lengths in falling order."""
    found, longest = list[int](), int(lengths[0])
    for at, length in enumerate(lengths.tolist()):
        if longest > SHORT and LIKE * length < longest:
            found.append(at)
            longest = length
    return found


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
