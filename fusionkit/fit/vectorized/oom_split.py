"""A stack that splits in two where its memory runs out, and goes on from where it was.

A step of a stack is all or nothing: where memory runs out, weights, moments and the runs' random numbers are as they
were before it. The halves lie in the same memory, so that splitting takes none. Runs do not depend on who stands beside
them: the results are those of the whole stack, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.fit.model.joint import Model
from fusionkit.fit.vectorized.stack import Stack, Stacked
from fusionkit.memory import out_of_memory
from fusionkit.specs import RunSpec

Result = TypeVar("Result")


class Splitting:
    """A :class:`~fusionkit.fit.vectorized.stack.Stack` in one piece, or in as many as memory asks for.

    Args:
        tell: called with the width of the widest half when a piece is split.

    Raises:
        MemoryError, RuntimeError: from :meth:`step` and :meth:`decide`: memory runs out for one run alone, or for runs
            that go one after another anyway.
    """

    def __init__(self, stack: Stack, tell: Callable[[int], None]) -> None:
        self._pieces, self._tell = [stack], tell
        self.learns, self.device = stack.learns, stack.device

    @property
    def specs(self) -> list[RunSpec]:
        """As :class:`~fusionkit.fit.vectorized.stack.Stack` says; so are the methods."""
        return [spec for piece in self._pieces for spec in piece.specs]

    def step(self, batches: Sequence[Batch], rates: Sequence[float]) -> Tensor:
        of_seed = dict(zip(dict.fromkeys(spec.data_seed for spec in self.specs), batches, strict=True))
        left = list(rates)

        def one(piece: Stack) -> Tensor:
            seeds = dict.fromkeys(spec.data_seed for spec in piece.specs)
            losses = piece.step([of_seed[seed] for seed in seeds], left[: len(piece.specs)])
            del left[: len(piece.specs)]
            return losses

        return _joined(self._each(one))

    def decide(self, batch: Batch, rough: Tensor | None = None, among: int = 0) -> Tensor:
        return _joined(self._each(lambda piece: piece.decide(batch, rough, among)))

    def weights(self, run: int) -> dict[str, Tensor]:
        piece, at = self._find(run)
        return piece.weights(at)

    def model(self, run: int) -> Model:
        piece, at = self._find(run)
        return piece.model(at)

    def keep(self, runs: Sequence[int]) -> None:
        """Go on with these runs alone, in this order, which must be the one they have."""
        start, left = 0, []
        for piece in self._pieces:
            stop = start + len(piece.specs)
            if stay := [run - start for run in runs if start <= run < stop]:
                if len(stay) < len(piece.specs):
                    piece.keep(stay)
                left.append(piece)
            start = stop
        self._pieces = left

    def _find(self, run: int) -> tuple[Stack, int]:
        for piece in self._pieces:
            if run < len(piece.specs):
                return piece, run
            run -= len(piece.specs)
        raise IndexError(run)

    def _each(self, work: Callable[[Stack], Result]) -> list[Result]:
        """What each piece gives, in order; a piece that runs out of memory is split until its halves do not."""
        found, todo, done = list[Result](), list(reversed(self._pieces)), list[Stack]()
        try:
            while todo:
                result = self._tried(work, todo[-1])
                piece = todo.pop()
                if result is not None:
                    found.append(result)
                    done.append(piece)
                else:  # here the error and all that it held are gone
                    assert isinstance(piece, Stacked)
                    halves = piece.split()
                    todo += reversed(halves)
                    self._tell(max(len(half.specs) for half in halves))
        finally:
            self._pieces = [*done, *reversed(todo)]
        return found

    def _tried(self, work: Callable[[Stack], Result], piece: Stack) -> Result | None:
        """None where memory ran out and a smaller piece may do."""
        try:
            return work(piece)
        except Exception as error:
            if out_of_memory(error) is None or not isinstance(piece, Stacked) or len(piece.specs) == 1:
                raise
            return None


def _joined(found: Sequence[Tensor]) -> Tensor:
    """``[R, …]`` of all pieces."""
    return found[0] if len(found) == 1 else torch.cat(list(found))
