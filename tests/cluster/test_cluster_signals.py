"""A command that is ended leaves a store to go on with, and no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from fusionkit.encode.part_records import store_status

# The command itself, in parts of few rows. Workers import it as a module, and must find nothing to do in it.
# A shell starts what runs in its background with SIGINT ignored, and these tests with it.
SMALL = """
import signal
import sys
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from fusionkit.store import layout
    layout.CHUNK_BYTES = int(sys.argv.pop(1))
    from fusionkit.cli.main import main
    main()
"""
EXAMPLES = 3000
CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGKILL": -9}
Until = Callable[[Callable[[], Any]], Any]


@dataclass(frozen=True)
class Ended:
    """A command that was ended ``by`` a signal; ``family``: all that it had started by then."""

    by: str
    out: Path
    code: int
    err: str
    family: list[psutil.Process]


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.soak("kills")) for name in ("SIGINT", "SIGKILL", "SIGTERM")]
)
def ended(request: pytest.FixtureRequest, model: Path, tmp_path: Path, until: Until, chunk_bytes: int) -> Ended:
    """By a signal at its first part."""
    folder, name = tmp_path, request.param
    words = ["".join(chr(ord(digit) - ord("0") + ord("a")) for digit in f"{number:04d}") for number in range(EXAMPLES)]
    (folder / "train.jsonl").write_text("\n".join(json.dumps({"text": word, "label": "a"}) for word in words))
    (folder / "small.py").write_text(SMALL)
    command = [sys.executable, str(folder / "small.py"), str(chunk_bytes), "encode", str(folder / "train.jsonl")]
    command += ["--encoder", str(model), "--rows", "tokens", "--device", "cpu", "--cluster", "local", "--workers", "1"]
    # A session of its own, as a terminal has: Ctrl-C goes to every process in it.
    process = subprocess.Popen(
        [*command, "--out", str(folder / "s")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    try:
        until(lambda: process.poll() is not None or any(folder.glob("s/parts/*.json")))
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        send = os.killpg if name == "SIGINT" else os.kill
        send(process.pid, getattr(signal, name))
        err = process.communicate(timeout=120)[1]
        return Ended(name, folder / "s", process.returncode, err, family)
    finally:
        process.kill()


def test_an_encode_that_is_ended_leaves_a_store_to_go_on_with_and_no_worker(ended: Ended, until: Until) -> None:
    assert ended.code == CODES[ended.by], ended.err
    assert ended.family
    assert "Traceback" not in ended.err
    if ended.by != "SIGKILL":
        assert "run the same command" in ended.err
    until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in ended.family))
    found = store_status(ended.out)
    assert (found["state"], found["encoder"]) == ("unfinished", None)
    assert 0 < found["splits"]["train"]["done"] < found["splits"]["train"]["parts"]
