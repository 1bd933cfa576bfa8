"""Memory while a source is read does not grow with it: sixteen times the examples, the same peak."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

FEW, MANY = 4_000, 64_000
CHARACTERS = 1_000  # an example: 64 MB in all
BOUND_MB = 32

# The small source first: the peak that the large one adds is counted, not the program's own.
READ = """
import resource, sys
import datasets  # the libraries' own pages
import pyarrow.csv, pyarrow.parquet
from fusionkit.sources import guess_columns, open_source, prepared

peaks = []
for path in sys.argv[1:]:
    source = open_source(path)
    mended, _ = prepared(source, guess_columns(source))
    examples = mended.splits["train"]
    assert sum(batch.num_rows for batch in examples.batches()) == examples.num_rows
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(examples.num_rows, (peaks[1] - peaks[0]) / 1000)
"""


def text(i: int) -> str:
    return f"{i} ".ljust(CHARACTERS, "x")


def jsonl(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text(i), "label": i % 2}) + "\n" for i in range(count))


def csv(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("text,label\n")
        file.writelines(f"{text(i)},{i % 2}\n" for i in range(count))


def conll(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{text(i).replace(' ', '-')} I-X\n\n" for i in range(count))


def parquet(path: Path, count: int) -> None:
    pq.write_table(pa.table({"text": [text(i) for i in range(count)]}), path, row_group_size=count)


def saved(path: Path, count: int) -> None:
    datasets.Dataset.from_dict({"text": [text(i) for i in range(count)]}).save_to_disk(path)


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "train.jsonl": jsonl, "train.csv": csv, "train.txt": conll, "train.parquet": parquet, "saved": saved,
}  # fmt: skip

SOAK = pytest.mark.soak("products")


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux alone")
# In the gate one of each kind of reading: spooled text, and Arrow.
@pytest.mark.parametrize(
    "name",
    [name if name in ("train.jsonl", "saved") else pytest.param(name, marks=SOAK) for name in WRITERS],
)
def test_sixteen_times_the_examples_take_no_more_memory(tmp_path: Path, name: str) -> None:
    paths = []
    for count in (FEW, MANY):
        (tmp_path / str(count)).mkdir()
        paths.append(tmp_path / str(count) / name)
        WRITERS[name](paths[-1], count)
    env = {**os.environ, "TMPDIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", READ, *paths], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read, grown = done.stdout.split()
    assert int(read) == MANY
    assert float(grown) < BOUND_MB
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(str, (FEW, MANY)))
