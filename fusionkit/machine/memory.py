"""The memory of this process: how much it holds, and what becomes of memory that it frees.

Only its own pages count, not those of files that it maps. While training and encoding, freed memory is kept: by default
the C library returns large pieces at once, and the kernel must zero the pages of the next step or batch. In training
that can cost more than the products of a step; an encode has five times the page faults. An encode also returns what
is free every few parts.
"""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

STATUS, REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"  # as the kernel's documentation of clear_refs has it
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h numbers them
SHORT = (
    "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUDA error: out of memory",
)  # fmt: skip
KEPT_BYTES, LARGEST_BYTES = 256 << 20, 32 << 20  # of all free memory at the heap's end, and of one piece: glibc's most


def resident() -> int:
    """Bytes that this process holds; where the system does not say, the most that it ever held."""
    try:
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


class PeakMemory:
    """The most bytes that were held since it was made: by this process, or on its GPU by tensors.

    Where the system does not let a process forget its own peak, this is the largest since the process began.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with suppress(OSError):
                REFS.write_text(FORGET_PEAK, encoding="ascii")

    def read(self) -> int:
        """In bytes."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        with suppress(OSError):
            for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def keep_freed_memory() -> None:
    """From now on this process keeps up to 256 MiB that it frees, where the C library has such a call."""
    if mallopt := _glibc("mallopt"):
        mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def trim_freed_memory() -> None:
    """Return freed memory to the system, where the C library has ``malloc_trim``.

    Batches of an encode differ in shape, so that freed memory is fragmented and the allocator keeps it: without
    trimming, an encode grows by some 100 MB over a million sub-tokens. A call takes a few milliseconds.
    """
    if trim := _glibc("malloc_trim"):
        trim(0)


def _glibc(name: str) -> Any:
    """A function of the C library; None where it is not glibc."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None


def out_of_memory(error: Exception) -> str | None:
    """What an error says where it says that memory has run out; None for any other."""
    said = str(error).strip().splitlines()
    first = said[0] if said else "no more was said"
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return f"out of memory: {first}"
    # PyTorch's allocator for the CPU, and libraries that take a GPU's memory by themselves, raise a plain RuntimeError.
    short = isinstance(error, RuntimeError) and any(name in str(error) for name in SHORT)
    return f"out of memory: {first}" if short else None
