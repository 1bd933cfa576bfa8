"""The seconds of each run, where runs are trained together.

    seconds of a run = Σ seconds of its stack's work / runs of the stack  +  Σ seconds of other work · rows / all rows

A stack's work is its steps and scorings. Other work is mainly reading; it is divided by the rows that each run reads.
On a GPU a stack's seconds are those of its kernels, which run while the host goes on. Kernels of several streams
overlap, so that stacks' seconds are scaled down where they exceed the time that passed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Runs = Sequence[Any]


class Stopwatch:
    """Counts the seconds of each run since it was made or last read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.begin()

    @contextmanager
    def of(self, runs: Runs) -> Iterator[None]:
        """A context whose time is charged to a stack of these runs."""
        if self._device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            stream = torch.cuda.current_stream(self._device)
            start.record(stream)
            yield
            end.record(stream)
            self._kernels.append((runs, start, end))
            return
        began = time.perf_counter()
        yield
        self._work.append((runs, time.perf_counter() - began))

    def read(self, rows: Mapping[Any, float]) -> dict[Any, float]:
        """The seconds of each run since the last :meth:`begin`; ``rows``: the number of rows that each read since."""
        if self._kernels:
            torch.cuda.synchronize(self._device)
            self._work += [(runs, start.elapsed_time(end) / 1e3) for runs, start, end in self._kernels]
        passed, worked = time.perf_counter() - self._began, sum(seconds for _, seconds in self._work)
        scale = min(passed / worked, 1.0) if worked else 1.0
        other, every = max(passed - worked * scale, 0.0), sum(rows.values())
        found = {run: other * (own / every if every else 1 / len(rows)) for run, own in rows.items()}
        for runs, seconds in self._work:
            for run in runs:
                found[run] = found.get(run, 0.0) + seconds * scale / len(runs)
        self.begin()
        return found

    def begin(self) -> None:
        """Start again: the time since the last reading is charged to no run."""
        self._work: list[tuple[Runs, float]] = []
        self._kernels: list[tuple[Runs, torch.cuda.Event, torch.cuda.Event]] = []
        self._began = time.perf_counter()
