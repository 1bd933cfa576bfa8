"""Seconds of wall and of processor that each stage of an encode takes in each thread; for `benchmarks/encode.py`.

A stage's seconds are its own: those of stages inside it are taken off. Processor seconds are the thread's; torch's
helper threads belong to no stage. On a GPU a forward pass only starts kernels, so its time shows where the host next
waits; what the GPU does is in a trace of torch.profiler.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import google_crc32c

from fusionkit.encode import batches, parts, repeats
from fusionkit.encode.output_blocks import PartBuffer
from fusionkit.io import files
from fusionkit.store import chunks


class Stages:
    """A stopwatch of nested stages, one stack of them a thread."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._inside: dict[int, list[list[float]]] = defaultdict(list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the block's own time for a stage of this thread."""
        stack = self._inside[threading.get_ident()]
        stack.append([0.0, 0.0])
        began = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            whole = time.perf_counter() - began[0], time.thread_time() - began[1]
            inner = stack.pop()
            thread = threading.current_thread().name.partition("_")[0].replace("MainThread", "encoder")
            for k in (0, 1):
                self.seconds[thread, name][k] += whole[k] - inner[k]
                if stack:
                    stack[-1][k] += whole[k]

    def of(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            with self.stage(name):
                return function(*given, **named)

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

    def rows(self) -> list[tuple[str, str, float, float]]:
        """Thread, stage, wall and processor seconds, the longest first in each thread."""
        found = [(thread, stage, wall, own) for (thread, stage), (wall, own) in self.seconds.items()]
        return sorted(found, key=lambda row: (row[0], -row[2]))


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
        "checksum": (google_crc32c, "extend"),
        "sync the file": (os, "fsync"),
        "sync the folder": (files, "sync_folder"),
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
        timed = stages.of_generator(batches.PartInput.batches, "pad")
        patches.enter_context(mock.patch.object(batches.PartInput, "batches", timed))
        timed = stages.of_transfer(PartBuffer.start_transfer)
        patches.enter_context(mock.patch.object(PartBuffer, "start_transfer", timed))
        yield stages
