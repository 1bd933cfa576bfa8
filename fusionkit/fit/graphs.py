"""Work on a GPU that is recorded once and replayed: CUDA graphs.

A step of a stack is some hundred small kernels, and telling the GPU of each from Python takes ten times as long as
doing it: on an H100 a step of 16 runs of ``attention`` takes 4 ms told kernel by kernel, 0.3 ms replayed. What is
recorded reads and writes the same memory each time, so it serves minibatches that come in the same memory
(:class:`fusionkit.fit.resident.Resident`) and blocks of a split that stays where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    result: Tensor


class Graphs:
    """The recordings of one stack; they are void once its weights lie elsewhere.

    Args:
        device: a GPU. generators: whose random numbers the work draws.
    """

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator]) -> None:
        self._device, self._generators = device, list(generators)
        self._kept: dict[Hashable, _Recorded | None] = {}
        self._pool = torch.cuda.graph_pool_handle()

    @property
    def recorded(self) -> int:
        """How many pieces of work are replayed."""
        return sum(found is not None for found in self._kept.values())

    def do(self, key: Hashable, work: Callable[[], Tensor]) -> Tensor:
        """Do it; what has the same key is the same work on the same memory.

        The first time it is done as it comes, which loads its kernels; the second time it is recorded.

        Returns:
            what ``work`` gives; from the second time on in the same memory, until it is done again.

        Raises:
            torch.OutOfMemoryError: memory runs out; nothing was done.
        """
        if key not in self._kept:
            self._kept[key] = None
            return work()
        if (found := self._kept[key]) is None:
            found = self._kept[key] = self._record(work)
        found.graph.replay()
        return found.result

    def _record(self, work: Callable[[], Tensor]) -> _Recorded:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        failed: torch.OutOfMemoryError | None = None
        here = torch.cuda.current_stream(self._device)
        # Products of all that was recorded on one stream share a scratch memory: work that is replayed beside other
        # work is recorded on its own stream. The common one cannot record, and what it replays is beside nothing.
        stream = None if here == torch.cuda.default_stream(self._device) else here
        with torch.cuda.device(self._device):
            try:
                with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                    try:
                        result = work()
                    except torch.OutOfMemoryError as error:
                        failed = error
                        raise
            except RuntimeError:
                if failed is None:
                    raise
                # To end a recording that broke off is an error too, and would hide what broke it.
                with contextlib.suppress(RuntimeError):
                    graph.reset()
                raise failed from None
        return _Recorded(graph, result)
