"""Child processes that are given work as JSON and answer in JSON, over one socket.

A child is a fresh interpreter: it inherits no lock, no thread and nothing of the program that starts it except
``sys.path``, so a script needs no ``__main__`` guard. It ends when its parent ends, for whatever reason: the kernel
closes the parent's end of the socket, and a thread of the child waits for that.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

# Ctrl-C goes to all processes of a terminal: children ignore it, and their parent ends them.
BOOT = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = json.loads(sys.argv[3])
from fusionkit.machine.child_processes import serve
serve(int(sys.argv[1]), sys.argv[2])
"""
TOLD = 2000  # bytes at the end of a dead child's output that are read


class Channel:
    """One end of the socket."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection

    def send(self, value: Any) -> None:
        """Raises OSError where the other end is gone."""
        self.connection.send_bytes(json.dumps(value).encode())

    def receive(self) -> Any:
        """The next value; waits for it. Raises EOFError or OSError where the other end is gone."""
        return json.loads(self.connection.recv_bytes())


class ChildProcess(Channel):
    """A process that runs ``main(channel)`` of a module; ``environment`` has further variables for it.

    Its ``connection`` is ready for :func:`multiprocessing.connection.wait` when it has sent something or has ended.
    """

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = Pipe()
        super().__init__(ours)
        # Not to the terminal, where it would break up what is shown; `end` reports the last line.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            handle = theirs.fileno()
            paths = [each for each in sys.path if isinstance(each, str)]  # Python skips others, e.g. a Path
            # -P: the child would import `json` and `signal` from the working folder, if they are there.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", BOOT, str(handle), module, json.dumps(paths)],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                pass_fds=[handle],
                env={**os.environ, **(environment or {})},
            )

    def end(self) -> str:
        """Kill it if it still runs, and wait for its end; returns how it ended, with the last line that it wrote."""
        self.connection.close()
        self.process.kill()
        status = self.process.wait()
        with self._said as said:
            said.seek(max(os.fstat(said.fileno()).st_size - TOLD, 0))
            lines = said.read().decode(errors="replace").strip().splitlines()
        how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
        return how + (f": {lines[-1].strip()}" if lines else "")


def serve(handle: int, module: str) -> None:
    """Run the child's side; called by :data:`BOOT`."""
    threading.Thread(target=_end_with_parent, args=(handle,), name="end with parent", daemon=True).start()
    importlib.import_module(module).main(Channel(Connection(handle)))


def _end_with_parent(handle: int) -> None:
    poll = select.poll()
    poll.register(handle, 0)  # poll reports a closed other end whatever events are asked for
    poll.poll()
    os._exit(0)  # nothing to clean up: a child's files are complete or absent at any moment
