"""A worker process, which does the units of a sweep that its parent sends, one after another.

Addresses, specs and digests are sent between the processes, no tensors. The parent's side is
``fit/executor/worker_pool.py``. A worker of a cluster (``cluster/fit_job.py``) uses the same :class:`UnitRunner`.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fusionkit.errors import FusionkitError
from fusionkit.fit.executor.context import Opening, open_context
from fusionkit.fit.executor.unit_job import Event, OnEvent, do_unit
from fusionkit.machine.child_processes import Channel
from fusionkit.machine.memory import keep_freed_memory
from fusionkit.machine.system_errors import system_error
from fusionkit.runs.claims import Claims
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

SEND_SECONDS = 0.1  # between two events on epochs: a small epoch takes a millisecond


def main(channel: Channel) -> None:
    """Do units until the parent ends; called by :func:`fusionkit.machine.child_processes.serve`."""
    try:
        runner = UnitRunner(**channel.receive())
        sender = EventSender(channel.send)
        channel.send({"kind": "ready"})
        while True:
            runner.run(channel.receive(), sender.on_event)
            sender.flush()
            channel.send({"kind": "end"})
    except (EOFError, ConnectionError):  # the parent has ended
        pass
    except Exception as error:
        channel.send(failure(error))


class UnitRunner:
    """A sweep in a worker's process: open stores, task data that is loaded once, and its own claims.

    ``runs`` is the absolute path of the folder, ``holder`` the name that claims show.
    """

    def __init__(self, opening: Opening, runs: str, threads: int, holder: str) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        self._context = open_context(opening)
        self._runs = RunsFolder(Path(runs))
        self._claims = Claims(self._runs.path, holder)

    def run(self, specs: Sequence[Mapping[str, Any]], on_event: OnEvent) -> None:
        """Do a unit, given as plain values; errors as :func:`~fusionkit.fit.executor.unit_job.do_unit`."""
        unit = [RunSpec.from_dict(dict(values)) for values in specs]
        do_unit(unit, self._context, self._runs, self._claims, on_event)


class EventSender:
    """Sends events as plain values; events on epochs are collected and sent together."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send, self._epochs, self._work, self._last = send, 0, 0.0, time.monotonic()

    def on_event(self, event: Event) -> None:
        """Send an event, or hold it back if it is on epochs."""
        if event.kind != "epochs":
            self.flush()
            self._send(asdict(event))
            return
        self._epochs, self._work = self._epochs + event.count, self._work + event.work
        if time.monotonic() - self._last > SEND_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send what was held back."""
        if self._epochs:
            self._send(asdict(Event("epochs", count=self._epochs, work=self._work)))
        self._epochs, self._work, self._last = 0, 0.0, time.monotonic()


def failure(error: Exception) -> dict[str, object]:
    """The message of an error that stops the whole sweep, for :func:`fusionkit.fit.executor.worker_pool.raised`."""
    told = error if isinstance(error, FusionkitError) else system_error(error)
    fields = told and {name: getattr(told, name) for name in ("what", "expected", "received", "remedy")}
    code = getattr(told, "exit_code", 1)
    return {"kind": "failure", "fields": fields, "exit_code": code, "trace": "".join(traceback.format_exception(error))}
