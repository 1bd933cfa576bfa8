"""Encodes in forked children, each killed at a random moment: ``killer.py MODEL SOURCE FOLDER CHUNK_BYTES KILLS SEED``.

Imports and the encoder are loaded once; every child runs the real :func:`fusionkit.encode.encode` from its start.
Each kill leaves what it leaves at ``FOLDER/{number}/s``. Kills that came too late to disturb are made again.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import sys
import time
from pathlib import Path

from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import layout

MODEL, SOURCE, FOLDER, CHUNK_BYTES, KILLS, SEED = sys.argv[1:]
layout.CHUNK_BYTES = int(CHUNK_BYTES)
source = open_source(SOURCE)
encoder = load_encoder(MODEL, device="cpu")
rng = random.Random(int(SEED))


def begin(out: Path) -> int:
    """The process that encodes into a place; its exit status is 0 when it came to the end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            encode(source, guess_columns(source), out, EncodeSpec(), encoder)
            status = 0
        finally:
            os._exit(status)
    return child


def undisturbed(out: Path) -> float:
    """Seconds from fork to end."""
    began = time.perf_counter()
    _, status = os.waitpid(begin(out), 0)
    assert status == 0, "an undisturbed encode failed"
    return time.perf_counter() - began


def main() -> None:
    duration = statistics.median(undisturbed(Path(FOLDER) / f"whole-{k}" / "s") for k in range(3))
    for number in range(int(KILLS)):
        killed = False
        while not killed:
            out = Path(FOLDER) / str(number) / "s"
            shutil.rmtree(out.parent, ignore_errors=True)
            child = begin(out)
            time.sleep(rng.uniform(0, duration))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            killed = os.WIFSIGNALED(status)
            assert killed or status == 0, "an encode failed before it was killed"


if __name__ == "__main__":
    main()
