"""Devices: the device of a name, that of a module's weights, and the precision and concurrency of a GPU's work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from fusionkit.errors import UsageError, first_line

CPU = torch.device("cpu")
MOST_STREAMS = 8  # CUDA streams; lanes beyond that number share them


def device_of(asked: str) -> torch.device:
    """The device of a name; ``auto`` is the first GPU, else the CPU. UsageError if torch has no such device here."""
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        there = torch.zeros(1, device=asked)
        there.cpu()  # the device "meta" has shapes and no numbers
        return there.device
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device {asked!r} cannot be used",
            expected="auto, cpu, cuda or cuda:N",
            received=first_line(error),
        ) from error


def home_of(module: nn.Module) -> torch.device:
    """The device of a module's weights, of its buffers if it has no weights; the CPU if it has neither."""
    return next((tensor.device for tensor in chain(module.parameters(), module.buffers())), CPU)


def sent_to(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on a device; to a GPU from pinned memory, since a copy from other memory waits for all earlier work."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@contextmanager
def tf32_products(rounds: bool, device: torch.device) -> Iterator[None]:
    """Set whether a GPU rounds the factors of float32 products to 11 bits inside the block, whatever the program has
    set. By default torch rounds those of convolutions and LSTMs.
    """
    if device.type != "cuda":
        yield
        return
    # Reading the older settings (allow_tf32) is an error where the program has set these.
    cudnn: Any = torch.backends.cudnn
    kinds = torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn
    before = [kind.fp32_precision for kind in kinds]
    try:
        for kind in kinds:
            kind.fp32_precision = "tf32" if rounds else "ieee"
        yield
    finally:
        for kind, precision in zip(kinds, before, strict=True):
            kind.fp32_precision = precision


class Streams:
    """Pieces of work that run concurrently on a GPU: a small one leaves most of it idle. On a CPU they run in turn.

    A piece keeps its lane: what it records is replayed on the stream on which it was recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._kept = device, list[torch.cuda.Stream]()

    @contextmanager
    def joined(self, lanes: Sequence[int]) -> Iterator[Sequence[AbstractContextManager[object]]]:
        """A context for the piece of each lane. Pieces begin when all work queued before them is done, and work queued
        afterwards begins when all pieces are done. One piece must not free what another has allocated.
        """
        if self._device.type != "cuda":
            yield [nullcontext()] * len(lanes)
            return
        numbers = [lane % MOST_STREAMS for lane in lanes]
        while len(self._kept) <= max(numbers):
            self._kept.append(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]
        before, used = torch.cuda.current_stream(self._device), [self._kept[number] for number in set(numbers)]
        for stream in used:
            stream.wait_stream(before)
        try:
            yield [torch.cuda.stream(self._kept[number]) for number in numbers]
        finally:
            for stream in used:
                before.wait_stream(stream)
