"""The memory of this process: how much it holds, and what happens to memory that it frees.

During training and encoding, freed memory is kept: by default the C library returns large pieces at once, and the
kernel must zero the pages of the next step or batch. In training that can cost more than the matrix products of a step;
an encode would have five times the page faults. An encode also returns free memory every few parts.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fusionkit.errors import first_line

STATUS, REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"  # written to clear_refs, resets the peak, by the kernel's documentation
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h
SHORT = (
    "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUDA error: out of memory",
)  # fmt: skip
KEPT_BYTES, LARGEST_BYTES = 256 << 20, 32 << 20  # of free memory at the heap's end, and of one piece: glibc's maximum


def resident() -> int:
    """Bytes that this process holds, without the pages of mapped files; if the system does not report it, the most that
    it ever held, with them.
    """
    return _status("RssAnon")


def _status(name: str) -> int:
    """A field of the kernel's status of this process, in bytes; without such a field, the most that it ever held."""
    with suppress(OSError):
        for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class PeakMemory:
    """The peak of bytes held since its creation: by this process, pages of mapped files included, or on its GPU by
    tensors.

    If the system does not let a process reset its peak, this is the peak since the process began.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with suppress(OSError):
                REFS.write_text(FORGET_PEAK, encoding="ascii")

    def read(self) -> int:
        """The peak in bytes."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return _status("VmHWM")


def page_aligned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that begin at a page of memory, so that the disk can read them without a copy
    (:mod:`fusionkit.store.direct_io`).
    """
    count = math.prod(shape)
    if not count:
        return torch.zeros(*shape, dtype=dtype)
    # Private memory: shared memory, which Python maps by default, has small pages only.
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype, count=count).view(*shape)


def keep_freed_memory() -> None:
    """Keep up to 256 MiB of freed memory in this process from now on, if the C library has ``mallopt``."""
    if mallopt := _glibc("mallopt"):
        mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def trim_freed_memory() -> None:
    """Return freed memory to the system, if the C library has ``malloc_trim``.

    Batches of an encode differ in shape, so that freed memory is fragmented and the allocator keeps it: without
    trimming, an encode grows by some 100 MB over a million sub-tokens. A call takes a few milliseconds.
    """
    if trim := _glibc("malloc_trim"):
        trim(0)


def _glibc(name: str) -> Any:
    """A function of the C library; None if it lacks it, as libraries other than glibc do."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None


def out_of_memory(error: Exception) -> str | None:
    """The message of an error that reports exhausted memory; None for any other error."""
    # PyTorch's CPU allocator, and libraries that allocate GPU memory themselves, raise a plain RuntimeError.
    short = isinstance(error, RuntimeError) and any(name in str(error) for name in SHORT)
    short = short or (isinstance(error, OSError) and error.errno == errno.ENOMEM)  # of a mapping
    if short or isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return f"out of memory: {first_line(error)}"
    return None
