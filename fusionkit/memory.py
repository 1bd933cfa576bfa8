"""How much memory this process holds, and held at most: its own pages, not those of files that it maps.

And what becomes of memory that a step frees: by default the C library hands large pieces back at once, and the next
step's pages are zeroed anew by the kernel, which can cost more than the step's products.
"""

from __future__ import annotations

import ctypes
import resource
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

STATUS = Path("/proc/self/status")
EVERY_SECONDS = 0.002
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h numbers them
SHORT = (
    "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUDA error: out of memory",
)  # fmt: skip
KEPT_BYTES, LARGEST_BYTES = 256 << 20, 32 << 20  # of all free memory at the heap's end, and of one piece: glibc's most


def resident() -> int:
    """Bytes; where the system does not tell, the most that was ever held."""
    try:
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def keep_freed_memory() -> None:
    """From now on this process keeps up to 256 MiB that it frees, where the C library has such a call."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another one than glibc
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


class PeakMemory:
    """What a piece of work takes: looked at every few milliseconds while it runs.

    Attributes:
        grown: bytes more than at the start, at most.
    """

    def __init__(self) -> None:
        self.grown = 0
        self._start = resident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="peak memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            self.grown = max(self.grown, resident() - self._start)
            if self._done.wait(EVERY_SECONDS):
                return


def out_of_memory(error: Exception) -> str | None:
    """What an error says where it says that memory has run out; None for any other."""
    said = str(error).strip().splitlines()
    first = said[0] if said else "no more was said"
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return f"out of memory: {first}"
    # PyTorch's allocator for the CPU, and libraries that take a GPU's memory by themselves, raise a plain RuntimeError.
    short = isinstance(error, RuntimeError) and any(name in str(error) for name in SHORT)
    return f"out of memory: {first}" if short else None
