"""Work on a GPU that is recorded once and replayed: CUDA graphs.

A step of a stack is some hundred small kernels, and launching them from Python takes ten times as long as running them:
on an H100 a step of 16 runs of ``attention`` takes 4 ms launched kernel by kernel, 0.3 ms replayed. A recording reads
and writes the same memory each time, so it is used for minibatches in reused buffers
(:class:`fusionkit.fit.loader.gpu.GpuLoader`) and blocks of a split that stays where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fusionkit.dataset.batch import SharedBuffer

Recorded = tuple[torch.cuda.CUDAGraph, Tensor]  # and its result


@cache
def _common(device: torch.device) -> torch.cuda.Stream:
    """The stream on which work that runs alone is recorded, because the default stream cannot record."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class CudaGraphs:
    """The recordings of one stack; they are invalid once its weights are in other memory.

    Args:
        device: a GPU. generators: the generators that the work draws from.
    """

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator]) -> None:
        self._device, self._generators = device, list(generators)
        self._kept: WeakKeyDictionary[SharedBuffer, dict[str, Recorded | None]] = WeakKeyDictionary()
        # The first graph of each stream. The stream's recordings share its memory pool, as they run one after another;
        # a pool is freed with its last graph.
        self._pools: dict[torch.cuda.Stream, torch.cuda.CUDAGraph] = {}

    def do(self, place: SharedBuffer, what: str, work: Callable[[], Tensor]) -> Tensor:
        """Run a piece of work, which reads the same memory each time it is called with the same place.

        The first time it runs as usual, which loads its kernels; the second time it is recorded; from then on it is
        replayed.

        Returns:
            the result of ``work``; from the second time on it is in the same memory, and valid until the work is run
            again.

        Raises:
            torch.OutOfMemoryError, RuntimeError: memory runs out; the work was not done.
        """
        kinds = self._kept.setdefault(place, {})
        if what not in kinds:
            kinds[what] = None
            return work()
        if (found := kinds[what]) is None:
            found = kinds[what] = self._record(work)
        graph, result = found
        graph.replay()
        return result

    def _record(self, work: Callable[[], Tensor]) -> Recorded:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        # Products that were recorded on one stream share scratch memory, and graphs of one pool share memory. So work
        # that is replayed beside other work is recorded on its own stream, in its own pool.
        stream = torch.cuda.current_stream(self._device)
        if stream == torch.cuda.default_stream(self._device):
            stream = _common(self._device)
        pool = self._pools[stream].pool() if stream in self._pools else None
        short = False
        with torch.cuda.device(self._device):
            try:
                with torch.cuda.graph(graph, pool=pool, stream=stream):
                    try:
                        result = work()
                    except torch.OutOfMemoryError:
                        short = True
                        raise
            except RuntimeError:
                if not short:
                    raise
        if short:  # ending a failed recording raises an error too, which would hide the first
            with contextlib.suppress(RuntimeError):
                graph.reset()
            raise torch.OutOfMemoryError("memory ran out while a step was recorded")
        self._pools.setdefault(stream, graph)
        return graph, result
