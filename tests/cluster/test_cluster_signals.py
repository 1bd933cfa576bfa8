"""A command that is ended leaves a store to go on with, and no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from fusionkit.encode.status import store_status

# The command itself, in parts of few rows. Workers import it as a module, and must find nothing to do in it.
SMALL = """
import sys
if __name__ == "__main__":
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
    """A command that was ended; ``family``: all that it had started by then."""

    out: Path
    code: int
    err: str
    family: list[psutil.Process]


@pytest.fixture(scope="module")
def ended(
    model: Path, tmp_path_factory: pytest.TempPathFactory, until: Until, chunk_bytes: int
) -> Iterator[dict[str, Ended]]:
    """By signal: all start together, for most of their time is spent on imports; each is ended at its first part."""
    folder = tmp_path_factory.mktemp("signals")
    words = ["".join(chr(ord(digit) - ord("0") + ord("a")) for digit in f"{number:04d}") for number in range(EXAMPLES)]
    (folder / "train.jsonl").write_text("\n".join(json.dumps({"text": word, "label": "a"}) for word in words))
    (folder / "small.py").write_text(SMALL)
    command = [sys.executable, str(folder / "small.py"), str(chunk_bytes), "encode", str(folder / "train.jsonl")]
    command += ["--encoder", str(model), "--rows", "tokens", "--device", "cpu", "--cluster", "local", "--workers", "1"]
    # A session of its own, as a terminal has: Ctrl-C goes to every process in it.
    started = {
        name: subprocess.Popen(
            [*command, "--out", str(folder / name)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        for name in CODES
    }  # fmt: skip
    families: dict[str, list[psutil.Process]] = {}

    def end() -> bool:
        """Those that have a part, or that have ended of themselves."""
        for name, process in started.items():
            if process.poll() is not None:
                families.setdefault(name, [])
            elif name not in families and any(folder.glob(f"{name}/parts/*.json")):
                families[name] = psutil.Process(process.pid).children(recursive=True)
                send = os.killpg if name == "SIGINT" else os.kill
                send(process.pid, getattr(signal, name))
        return len(families) == len(started)

    try:
        until(end)
        said = {name: process.communicate(timeout=120)[1] for name, process in started.items()}
        yield {name: Ended(folder / name, started[name].returncode, said[name], families[name]) for name in CODES}
    finally:
        for process in started.values():
            process.kill()


@pytest.mark.parametrize("name", CODES)
def test_an_encode_that_is_ended_leaves_a_store_to_go_on_with_and_no_worker(
    ended: dict[str, Ended], until: Until, name: str
) -> None:
    one = ended[name]
    assert one.code == CODES[name], one.err
    assert one.family
    assert "Traceback" not in one.err
    if name != "SIGKILL":
        assert "run the same command" in one.err
    until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in one.family))
    found = store_status(one.out)
    assert (found["state"], found["encoder"]) == ("unfinished", None)
    assert 0 < found["splits"]["train"]["done"] < found["splits"]["train"]["parts"]
