"""What a worker process of this machine does before all else: leave Ctrl-C to the process that started it.

A terminal sends it to all of them.
"""

from __future__ import annotations

import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Called by Dask in the process of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
