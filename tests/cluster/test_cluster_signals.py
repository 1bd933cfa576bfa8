"""A command that is ended leaves a store to go on with, and no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
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


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGKILL", -9)])
def test_an_encode_that_is_ended_leaves_a_store_to_go_on_with_and_no_worker(
    model: Path, tmp_path: Path, until: Callable[[Callable[[], Any]], Any], chunk_bytes: int, name: str, code: int
) -> None:
    out = tmp_path / "s"
    words = ["".join(chr(ord(digit) - ord("0") + ord("a")) for digit in f"{number:04d}") for number in range(EXAMPLES)]
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps({"text": word, "label": "a"}) for word in words))
    (tmp_path / "small.py").write_text(SMALL)
    command = [sys.executable, str(tmp_path / "small.py"), str(chunk_bytes), "encode", str(tmp_path / "train.jsonl")]
    command += ["--out", str(out), "--encoder", str(model), "--rows", "tokens", "--device", "cpu", "--cluster", "local"]
    # A session of its own, as a terminal has: Ctrl-C goes to every process in it.
    process = subprocess.Popen(
        [*command, "--workers", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    until(lambda: ((out / "parts").is_dir() and any((out / "parts").glob("*.json"))) or process.poll() is not None)
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    if name == "SIGINT":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert "Traceback" not in err
    if name != "SIGKILL":
        assert "run the same command" in err
    until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family))
    found = store_status(out)
    assert (found["state"], found["encoder"]) == ("unfinished", None)
    assert 0 < found["splits"]["train"]["done"] < found["splits"]["train"]["parts"]
