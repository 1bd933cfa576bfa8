"""kill -9 at any moment, SIGTERM at any part: the store that is gone on with ends with the same bytes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.store import is_complete, is_store, verify_store

Encoding = Callable[..., Any]
Same = Callable[[Path], None]
KILLER = Path(__file__).with_name("killer.py")
SEED = 20240
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def moment(out: Path, parts: int) -> str:
    """What a killed encode had come to."""
    if not is_store(out):
        return "planning"
    if is_complete(out):
        return "complete"
    done = len(list((out / "parts").glob("*.json")))
    return "planned" if done == 0 else "all parts" if done == parts else "some parts"


@pytest.mark.parametrize("kills", [2, pytest.param(52, marks=pytest.mark.soak("kills"))])
def test_an_encode_killed_at_any_moment_ends_with_the_same_bytes(
    model: Path, place: Path, chunk_bytes: int, kinds: dict[str, dict[str, Any]], whole_of: Callable[[str], Path],
    encoded: Encoding, assert_same: Callable[..., None], tmp_path: Path, kills: int,
) -> None:  # fmt: skip
    """Each kind of store as often, every second time only once it is planned."""
    arguments = [model, place, tmp_path, chunk_bytes, kills, SEED, json.dumps(list(kinds.values()))]
    subprocess.run([sys.executable, KILLER, *map(str, arguments)], env=ENVIRONMENT, check=True)
    parts = {kind: len(list((whole_of(kind) / "parts").iterdir())) for kind in kinds}
    moments: Counter[str] = Counter()
    midway: Counter[str] = Counter()
    for number in range(kills):
        out, kind = tmp_path / str(number) / "s", list(kinds)[number % len(kinds)]
        at = moment(out, parts[kind])
        moments[at] += 1
        midway[kind] += at == "some parts"
        assert encoded(out, kind).outcome == {"planning": "encoded", "complete": "complete"}.get(at, "resumed")
        assert_same(out, kind)
    print(f"{kills} kills: {dict(moments)}; with some parts done: {dict(midway)}")
    assert moments.total() == kills
    if kills < 52:
        return
    # They were spread over the work, and nearly all of them disturbed it.
    assert moments["complete"] <= kills // 5
    assert moments["planning"] >= 3
    assert moments["some parts"] >= 5
    assert min(midway.values()) >= 1


@pytest.mark.parametrize("left", ["a plan", "a partial manifest", "a partial record"])
def test_a_kill_between_the_last_two_steps_leaves_a_complete_store(
    whole: Path, encoded: Encoding, assert_same: Same, tmp_path: Path, left: str
) -> None:
    """Windows of microseconds, which random kills hardly meet: what they leave, laid down by hand."""
    out = Path(shutil.copytree(whole, tmp_path / "s"))
    name = {"a plan": "plan.json", "a partial manifest": ".manifest.json.7.partial"}.get(
        left, "parts/.x.json.7.partial"
    )
    (out / name).write_text("half of a fi")
    assert encoded(out).outcome == "complete"
    assert_same(out)


@pytest.mark.parametrize("kept", ["old moved away", "new in place"])
def test_a_kill_while_a_store_is_replaced_loses_neither_store(
    whole: Path, encoded: Encoding, assert_same: Same, tmp_path: Path, kept: str
) -> None:
    """With --overwrite the old store is renamed aside, then the new one into its place."""
    out, old, aside = tmp_path / "s", tmp_path / ".s.replaced", tmp_path / ".s.planning"
    shutil.copytree(whole, out)
    if kept == "old moved away":
        out.rename(old)
        aside.mkdir()
    else:
        (old / "states.zarr").mkdir(parents=True)
        (old / "manifest.json").write_text("{}")
    assert encoded(out).outcome == "complete"
    assert_same(out)


# The real command with small parts, asked to stop while it writes the chunk whose path holds the word.
STOPPED = """
import os, signal, sys
from fusionkit.cli.main import main
from fusionkit.store import layout

layout.CHUNK_BYTES, word = int(sys.argv.pop(1)), sys.argv.pop(1)
fsync = os.fsync

def asked_to_stop(handle):
    if word in os.readlink(f"/proc/self/fd/{handle}"):
        os.kill(os.getpid(), signal.SIGTERM)
    fsync(handle)

os.fsync = asked_to_stop
main()
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see which file is written")
def test_sigterm_stops_the_command_at_a_parts_end_and_says_how_to_resume(
    model: Path, place: Path, chunk_bytes: int, whole: Path, encoded: Encoding, assert_same: Same, tmp_path: Path
) -> None:
    out = tmp_path / "s"
    word = "/train/hidden_states/c/2/0/"
    command = ["encode", place, "--encoder", model, "--device", "cpu", "--out", out]
    arguments = [sys.executable, "-c", STOPPED, chunk_bytes, word, *command]
    stopped = subprocess.run(
        [str(each) for each in arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert stopped.returncode == 128 + signal.SIGTERM == 143
    parts = len(list((whole / "parts").iterdir()))
    done = sorted(file.name for file in (out / "parts").iterdir())
    assert done[:3] == ["train-00000.json", "train-00001.json", "train-00002.json"]
    # The part that is computed just then and those that wait for the disk are ended too.
    assert 3 <= len(done) <= 8
    message = re.search(r"fusionkit: stopped with (\d+) of (\d+) parts of (.+) to do", stopped.stderr)
    assert message is not None, stopped.stderr
    assert message.groups() == (str(parts - len(done)), str(parts), str(out))
    assert "remedy:   run the same command again: finished parts are kept" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert list(out.rglob("*.partial")) == []
    before = {name: (out / "parts" / name).read_bytes() for name in done}
    assert encoded(out).outcome == "resumed"
    assert {name: (out / "parts" / name).read_bytes() for name in done} == before
    assert_same(out)
    assert [checked.fault for checked in verify_store(out) if checked.fault] == []
