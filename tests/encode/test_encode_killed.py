"""A process that ends without a word: what it leaves is gone on with, to the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fusionkit.encode import EncodeReport
from fusionkit.errors import FusionkitError, StoppedError
from fusionkit.sources import Source, examples
from fusionkit.store import is_store, layout, verify_store

pytestmark = pytest.mark.usefixtures("small_parts")
Same = Callable[[Path, Path], None]
Encoding = Callable[..., EncodeReport]
# Ends itself, as the kernel would, in the middle of writing the file whose path holds the word.
KILLED = """
import json, os, signal, sys
from pathlib import Path
import pyarrow as pa
from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.sources import Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import layout

model, out, data, chunk_bytes, word = sys.argv[1:]
layout.CHUNK_BYTES = int(chunk_bytes)
fsync = os.fsync

def fsync_or_die(handle):
    if word in os.readlink(f"/proc/self/fd/{handle}"):
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(handle)

os.fsync = fsync_or_die
source = Source("letters", {split: pa.table(columns) for split, columns in json.loads(data).items()})
encode(source, guess_columns(source), Path(out), EncodeSpec(), load_encoder(model, device="cpu"))
"""


@pytest.mark.soak("kills")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see which file is written")
def test_an_encode_killed_while_it_writes_a_chunk_ends_with_the_same_bytes(
    source: Source, encoded: Encoding, folder: Path, assert_same: Same, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "s"
    data = json.dumps({split: examples.head().to_pydict() for split, examples in source.splits.items()})
    word = "/train/hidden_states/c/3/0/"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, folder, out, data, str(layout.CHUNK_BYTES), word],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert sorted(file.name for file in (out / "parts").iterdir()) == [f"train-0000{part}.json" for part in (0, 1, 2)]
    assert len(list(out.rglob("*.partial"))) == 1
    assert encoded(source, out).outcome == "resumed"
    assert_same(out, whole)
    assert all(checked.fault is None for checked in verify_store(out))
    assert {path.name for path in tmp_path.iterdir()} == {"s"}


@pytest.mark.parametrize("left", ["plan.json", "examples/train.parquet"])
def test_what_a_process_killed_while_planning_leaves_is_no_store(
    source: Source, encoded: Encoding, assert_same: Same, whole: Path, tmp_path: Path, left: str
) -> None:
    """The plan grows in a folder aside and is renamed when it is whole."""
    out, aside = tmp_path / "s", tmp_path / ".s.planning"
    (aside / left).parent.mkdir(parents=True)
    (aside / left).write_bytes(b"half of a fi")
    assert not is_store(out)
    assert encoded(source, out).outcome == "encoded"
    assert_same(out, whole)
    assert {path.name for path in tmp_path.iterdir()} == {"s"}


class Interrupting:
    """Somebody presses Ctrl-C at the first progress of a stage."""

    def __init__(self, stage: str) -> None:
        self.stage, self.current = stage, ""

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        self.current = name

    def advance(self, count: int) -> None:
        if self.current == self.stage:
            raise KeyboardInterrupt

    def say(self, line: str) -> None:
        return


def test_an_interruption_while_planning_leaves_nothing(source: Source, encoded: Encoding, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        encoded(source, tmp_path / "s", progress=Interrupting("tokenising"))
    assert list(tmp_path.iterdir()) == []
    assert encoded(source, tmp_path / "s").outcome == "encoded"


def test_an_interruption_while_planning_over_a_store_keeps_that_store(
    source: Source, encoded: Encoding, assert_same: Same, whole: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "s"))
    with pytest.raises(KeyboardInterrupt):
        encoded(source, out, rows="mean", overwrite=True, progress=Interrupting("tokenising"))
    assert_same(out, whole)
    assert encoded(source, out).outcome == "complete"


def test_a_stop_while_planning_comes_after_a_block_and_leaves_nothing(
    source: Source, encoded: Encoding, assert_same: Same, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "PIECE_EXAMPLES", 10)
    asked = iter([False, False, True])
    with pytest.raises(StoppedError, match="nothing of it is kept") as caught:
        encoded(source, tmp_path / "s", stop=lambda: next(asked))
    assert caught.value.what.startswith(f"stopped before the plan of {tmp_path / 's'} was complete")
    assert caught.value.received == "30 of 45 examples of train planned"
    assert "it begins anew" in str(caught.value.remedy)
    assert list(tmp_path.iterdir()) == []
    assert encoded(source, tmp_path / "s").outcome == "encoded"
    assert_same(tmp_path / "s", whole)


def test_a_stop_while_planning_over_a_store_keeps_that_store(
    source: Source, encoded: Encoding, assert_same: Same, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "PIECE_EXAMPLES", 10)
    out = Path(shutil.copytree(whole, tmp_path / "s"))
    with pytest.raises(StoppedError, match="before the plan"):
        encoded(source, out, rows="mean", overwrite=True, stop=lambda: True)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert_same(out, whole)


def test_an_interruption_while_encoding_keeps_the_plan(source: Source, encoded: Encoding, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        encoded(source, tmp_path / "s", progress=Interrupting("encoding"))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert encoded(source, tmp_path / "s").outcome == "resumed"


# Holds a store's lock as an encoder does, says so, and ends when its input does.
HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.write("process 4711 on elsewhere")
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_encoder_on_the_same_store_is_refused(
    source: Source, encoded: Encoding, content: Callable[[Path], dict[str, bytes]], tmp_path: Path
) -> None:
    out = tmp_path / "s"
    with pytest.raises(KeyboardInterrupt):
        encoded(source, out, progress=Interrupting("encoding"))
    before = content(out)
    command = [sys.executable, "-c", HOLDER, str(tmp_path / ".s.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for overwrite in (False, True):
            with pytest.raises(FusionkitError, match="another process encodes into") as caught:
                encoded(source, out, overwrite=overwrite)
            assert caught.value.received == "process 4711 on elsewhere"
        assert content(out) == before
        holder.communicate("")
    assert encoded(source, out).outcome == "resumed"


def test_a_store_is_locked_as_long_as_it_is_encoded(source: Source, encoded: Encoding, tmp_path: Path) -> None:
    refused: list[str] = []

    def second(*of: object) -> list[object]:
        with pytest.raises(FusionkitError, match="another process encodes into") as caught:
            encoded(source, tmp_path / "s")
        refused.append(str(caught.value.received))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encoded(source, tmp_path / "s", run_parts=second)
    assert len(refused) == 1
    assert f"process {os.getpid()} on " in refused[0]
    assert encoded(source, tmp_path / "s").outcome == "resumed"
