"""Ignore Ctrl-C in a worker process of this machine, before it starts: a terminal sends it to all processes.

The process that started the workers ends them.
"""

from __future__ import annotations

import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Called by Dask in the process of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
