"""A worker: one process that does unit after unit of a sweep, as it is told.

It opens the stores by their addresses, keeps the task data between units, claims and keeps the runs itself. Addresses,
specs and digests cross the boundary, no tensors. Its parent's side is ``fit/executor/executors.py``.
"""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any, Protocol

import torch

from fusionkit.child_processes import Channel
from fusionkit.errors import FusionkitError
from fusionkit.fit.executor.context import ContextOpener
from fusionkit.fit.executor.unit_job import Event, do_unit
from fusionkit.memory import keep_freed_memory
from fusionkit.runs.claims import Claims
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

SAY_SECONDS = 0.1  # between two words on epochs: a small one takes a millisecond


def main(channel: Channel) -> None:
    """Work until the parent says no more; called by :func:`fusionkit.child_processes.serve`."""
    try:
        told = channel.receive()
        torch.set_num_threads(told["threads"])
        keep_freed_memory()
        materials = ContextOpener.from_dict(told["opening"]).open()
        runs = RunsFolder(Path(told["runs"]))
        claims = Claims(runs.path, told["holder"])
        speaker = EventSender(channel)
        channel.send({"kind": "ready"})
        while True:
            specs = [RunSpec.from_dict(values) for values in channel.receive()]
            do_unit(specs, materials, runs, claims, speaker.hear)
            speaker.flush()
            channel.send({"kind": "end"})
    except (EOFError, OSError) as error:
        if not isinstance(error, (EOFError, ConnectionError)):
            channel.send(failure(error))
    except Exception as error:
        channel.send(failure(error))


class EventSink(Protocol):
    """Takes plain values to whoever listens."""

    def send(self, value: Any) -> None: ...


class EventSender:
    """Passes words on, those on epochs a few at a time."""

    def __init__(self, channel: EventSink) -> None:
        self._channel, self._epochs, self._work, self._last = channel, 0, 0.0, time.monotonic()

    def hear(self, word: Event) -> None:
        """One more word."""
        if word.kind != "epochs":
            self.flush()
            self._channel.send(word.to_dict())
            return
        self._epochs, self._work = self._epochs + word.count, self._work + word.work
        if time.monotonic() - self._last > SAY_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Say what was held back."""
        if self._epochs:
            self._channel.send(Event("epochs", count=self._epochs, work=self._work).to_dict())
        self._epochs, self._work, self._last = 0, 0.0, time.monotonic()


def failure(error: Exception) -> dict[str, object]:
    """What stops the whole sweep, for :func:`fusionkit.fit.executor.executors.raised` to raise again."""
    known = isinstance(error, FusionkitError)
    fields = {name: getattr(error, name) for name in ("what", "expected", "received", "remedy")} if known else None
    code = getattr(error, "exit_code", 1)
    return {"kind": "failure", "fields": fields, "exit_code": code, "trace": "".join(traceback.format_exception(error))}
