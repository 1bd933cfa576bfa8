"""Encodes in forked children, each killed at a random moment.

    killer.py MODEL SOURCE FOLDER CHUNK_BYTES KILLS SEED SPECS

Imports and the encoder are loaded once; every child runs the real :func:`fusionkit.encode.encode` from its start.
Kill n has the spec n % len(SPECS) of the JSON list SPECS and leaves what it leaves at ``FOLDER/{n}/s``. Kills that
came too late to disturb are made again.
"""

from __future__ import annotations

import json
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

MODEL, SOURCE, FOLDER, CHUNK_BYTES, KILLS, SEED, SPECS = sys.argv[1:]
layout.CHUNK_BYTES = int(CHUNK_BYTES)
source = open_source(SOURCE)
encoder = load_encoder(MODEL, device="cpu")
specs = [EncodeSpec(**given) for given in json.loads(SPECS)]
rng = random.Random(int(SEED))


def begin(out: Path, spec: EncodeSpec) -> int:
    """The process that encodes into a place; its exit status is 0 when it came to the end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            encode(source, guess_columns(source), out, spec, encoder)
            status = 0
        finally:
            os._exit(status)
    return child


def undisturbed(out: Path, spec: EncodeSpec) -> tuple[float, float]:
    """Seconds from fork until the plan is in its place, and from there to the end."""
    began = time.perf_counter()
    child = begin(out, spec)
    wait_for_plan(out, child)
    planned = time.perf_counter()
    _, status = os.waitpid(child, 0)
    assert status == 0, "an undisturbed encode failed"
    return planned - began, time.perf_counter() - planned


def wait_for_plan(out: Path, child: int) -> None:
    """Return when the store's folder is there, or the process has ended."""
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while not out.exists() and os.waitid(os.P_PID, child, ended) is None:
        time.sleep(0.0005)


def main() -> None:
    times = [undisturbed(Path(FOLDER) / f"whole-{k}" / "s", specs[0]) for k in range(min(3, int(KILLS)))]
    planning, encoding = (statistics.median(each) for each in zip(*times, strict=True))
    for number in range(int(KILLS)):
        killed = False
        while not killed:
            out = Path(FOLDER) / str(number) / "s"
            shutil.rmtree(out.parent, ignore_errors=True)
            child = begin(out, specs[number % len(specs)])
            if number // len(specs) % 2:  # the parts alone, which take the smaller half of the time
                wait_for_plan(out, child)
                time.sleep(rng.uniform(0, encoding))
            else:
                time.sleep(rng.uniform(0, planning + encoding))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            killed = os.WIFSIGNALED(status)
            assert killed or status == 0, "an encode failed before it was killed"


if __name__ == "__main__":
    main()
