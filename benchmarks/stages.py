"""Calls and seconds of each stage of an encode, per thread; for `benchmarks/encode.py`.

A stage's seconds exclude those of the stages inside it. Processor seconds are those of the thread; torch's helper
threads belong to no stage. Seconds of waiting for a core are those in which the thread could run but other work had the
cores: on a busy machine a sync of 0.5 ms shows 4 ms of wall time. Only Linux counts them. The stopwatch's own time is
counted in the stage around the timed one. On a GPU a forward pass only launches kernels, so its time shows where the
host next waits; a trace of torch.profiler shows what the GPU does.
"""

from __future__ import annotations

import os
import queue
import stat
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from fusionkit.encode import batches, parts, repeats
from fusionkit.encode.output_blocks import PartBuffer
from fusionkit.store import chunks


class Stage(NamedTuple):
    """Calls and seconds of one stage in one thread; ``waiting`` is the time of waiting for a core."""

    thread: str
    name: str
    calls: int
    wall: float
    processor: float
    waiting: float


class Stages:
    """A stopwatch of nested stages, with one stack of stages per thread."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        self._calls: Counter[tuple[str, str]] = Counter()
        self._inside: dict[int, list[list[float]]] = defaultdict(list)
        self._local = threading.local()

    def _now(self) -> tuple[float, float, float]:
        """Wall, processor and waiting seconds of this thread."""
        if not hasattr(self._local, "schedstat"):
            try:
                self._local.schedstat = Path("/proc/thread-self/schedstat").open("rb", buffering=0)  # noqa: SIM115
            except OSError:
                self._local.schedstat = None
        file = self._local.schedstat
        waiting = 0 if file is None else int(os.pread(file.fileno(), 100, 0).split()[1])
        return time.perf_counter(), time.thread_time(), waiting / 1e9

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the block's time, without that of stages inside it, for a stage of this thread."""
        stack = self._inside[threading.get_ident()]
        stack.append([0.0, 0.0, 0.0])
        began = self._now()
        try:
            yield
        finally:
            whole = [now - then for now, then in zip(self._now(), began, strict=True)]
            inner = stack.pop()
            thread = threading.current_thread().name.partition("_")[0].replace("MainThread", "encoder")
            self._calls[thread, name] += 1
            for k in range(3):
                self._seconds[thread, name][k] += whole[k] - inner[k]
                if stack:
                    stack[-1][k] += whole[k]

    def of(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            with self.stage(name):
                return function(*given, **named)

        return timed

    def of_sync(self, function: Callable[[int], None]) -> Callable[[int], None]:
        def timed(handle: int) -> None:
            with self.stage(f"sync the {'folder' if stat.S_ISDIR(os.fstat(handle).st_mode) else 'file'}"):
                function(handle)

        return timed

    def of_generator(self, function: Callable[..., Iterator[Any]], name: str) -> Callable[..., Iterator[Any]]:
        def timed(*given: Any, **named: Any) -> Iterator[Any]:
            found = function(*given, **named)
            while True:
                with self.stage(name):
                    try:
                        each = next(found)
                    except StopIteration:
                        return
                yield each

        return timed

    def of_transfer(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(buffer: PartBuffer) -> Any:
            with self.stage("start the transfer"):
                finish = function(buffer)
            return self.of(finish, "order or copy")

        return timed

    def rows(self) -> list[Stage]:
        """All stages, the longest first in each thread."""
        found = [Stage(*key, self._calls[key], *seconds) for key, seconds in self._seconds.items()]
        return sorted(found, key=lambda stage: (stage.thread, -stage.wall))


@contextmanager
def watched() -> Iterator[Stages]:
    """Time the stages of what is encoded inside the block, by any thread of this process."""
    stages = Stages()
    plain = {
        "compute": (parts.PartEncoder, "compute"),
        "wait for a free buffer": (queue.LifoQueue, "get"),
        "wait for input, at the end for the writers": (Future, "result"),
        "repeated sequences": (parts.PartEncoder, "_copy_repeated"),
        "put": (PartBuffer, "put"),
        "put, repeated": (PartBuffer, "put_rounded"),
        "assign": (PartBuffer, "assign"),
        "read": (batches.PartReader, "read"),
        "finite": (parts, "is_finite"),
        "write a part": (parts.PartEncoder, "write"),
        "write": (chunks, "write_pieces"),
        "checksum": (chunks, "crc32c"),
        "record": (parts, "write_json"),
    }
    with ExitStack() as patches:
        for name, (owner, attribute) in plain.items():
            timed = stages.of(getattr(owner, attribute), name)
            patches.enter_context(mock.patch.object(owner, attribute, timed))
        for module in (parts, repeats):
            for attribute, make in (("forward", stages.of), ("batch_rows", stages.of_generator)):
                timed = make(getattr(module, attribute), {"forward": "forward", "batch_rows": "gather"}[attribute])
                patches.enter_context(mock.patch.object(module, attribute, timed))
        patches.enter_context(mock.patch.object(os, "fsync", stages.of_sync(os.fsync)))
        for owner, attribute, name in (
            (batches.PartInput, "batches", "pad"),
            (parts.PartEncoder, "_work", "places of rows"),
        ):
            timed = stages.of_generator(getattr(owner, attribute), name)
            patches.enter_context(mock.patch.object(owner, attribute, timed))
        timed = stages.of_transfer(PartBuffer.start_transfer)
        patches.enter_context(mock.patch.object(PartBuffer, "start_transfer", timed))
        yield stages
