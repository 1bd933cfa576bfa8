"""Cost of a cluster: overhead per part over the serial map, and the scheduler's memory over many tiny parts.

    python benchmarks/cluster.py parts      the same tiny parts by one process and by one worker of a local cluster
    python benchmarks/cluster.py many       10,000 parts that do nothing, two workers; memory of scheduler and driver
    python benchmarks/cluster.py encode     10,000 parts of one short text each, by two workers; the same memory

Limits: an overhead below 50 ms per part; memory that grows from 1,000 to 10,000 parts by less than 10 % or 20 MiB,
whichever is more.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fusionkit.cluster import ClusterSettings, open_cluster
from fusionkit.cluster.part_map import cluster_parts
from fusionkit.cluster.task_map import each_done
from fusionkit.encode import encode
from fusionkit.encode.job import NoProgress
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.sources import Source, guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import layout

WORDS = "the a of to in is it on as by or at rain snow fog wind sun frost hail sleet"
EXAMPLES, ROWS_A_PART = 1200, 4
MARKS = (1_000, 10_000)
LIMIT_MS, LIMIT_GROWTH, LIMIT_BYTES = 50.0, 0.10, 20 << 20


def tiny_source(folder: Path, examples: int = EXAMPLES) -> Source:
    words = np.array(WORDS.split())
    rng = np.random.default_rng(0)
    lines = [json.dumps({"text": " ".join(rng.choice(words, 6)), "label": str(n % 2)}) for n in range(examples)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    return open_source(str(folder / "train.jsonl"))


def timed(source: Source, out: Path, encoder: Encoder, run_parts: Any = None) -> tuple[float, int]:
    """Seconds from the end of the first part to the end of the last, by their records, and the number of parts that end
    in them: so a worker's start is not counted.
    """
    encode(source, guess_columns(source), out, EncodeSpec(rows="mean"), encoder, run_parts=run_parts)
    ends = sorted(record.stat().st_mtime_ns for record in (out / "parts").iterdir())
    return (ends[-1] - ends[0]) / 1e9, len(ends) - 1


def overhead() -> None:
    layout.CHUNK_BYTES = ROWS_A_PART * 7 * 384 * 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, encoder = tiny_source(folder), load_encoder("minilm", device="cpu")
        settings = ClusterSettings(workers=1, threads=1, gpus=0)
        with open_cluster(settings) as cluster:
            for repeat in range(3):
                alone, parts = timed(source, folder / f"alone{repeat}", encoder)
                shared, _ = timed(
                    source, folder / f"shared{repeat}", encoder, cluster_parts(cluster, encoder, settings)
                )
                extra = 1000 * (shared - alone) / parts
                print(
                    f"{parts} parts: serial {1000 * alone / parts:.1f} ms a part, one worker of a cluster "
                    f"{1000 * shared / parts:.1f}: {extra:.1f} ms more (limit {LIMIT_MS:g}: "
                    f"{'kept' if extra < LIMIT_MS else 'BROKEN'})"
                )


def nothing(item: int) -> dict[str, Any]:
    """Do nothing; return a record as large as a part's."""
    return {"split": "train", "chunk": item, "rows": 24000, "tokens": 24000, "seconds": 0.1, "crc32c": {"h": 1}}


class Marks(NoProgress):
    """Notes the memory of this process, which is scheduler and driver, when as many parts as in ``MARKS`` are done."""

    def __init__(self) -> None:
        self.done, self.began, self.seen = 0, time.perf_counter(), dict[int, int]()

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        """Begin again: the advances so far were those of an earlier stage, tokenising."""
        self.done, self.began = 0, time.perf_counter()

    def advance(self, count: int) -> None:
        self.done += 1
        if self.done in MARKS:
            self.seen[self.done] = psutil.Process().memory_info().rss
            took = time.perf_counter() - self.began
            print(f"{self.done:,} parts: {self.seen[self.done] / 1e6:,.1f} MB, {took:.1f} s", flush=True)

    def verdict(self) -> str:
        grown = self.seen[MARKS[1]] - self.seen[MARKS[0]]
        kept = grown < max(LIMIT_GROWTH * self.seen[MARKS[0]], LIMIT_BYTES)
        each = 1000 * (time.perf_counter() - self.began) / MARKS[-1]
        return f"{each:.1f} ms a part; grown by {grown / 1e6:.1f} MB: {'kept' if kept else 'BROKEN'}"


def many() -> None:
    with open_cluster(ClusterSettings(workers=2, threads=1, gpus=0)) as cluster:
        work: Callable[[int], dict[str, Any]] = nothing
        list(each_done(cluster, work, range(100), on_aside=print))
        print(f"before: {psutil.Process().memory_info().rss / 1e6:,.1f} MB (scheduler and driver are one process)")
        marks = Marks()
        for _ in each_done(cluster, work, range(MARKS[-1]), on_aside=print):
            marks.advance(1)
    print(marks.verdict())


def encode_many() -> None:
    layout.CHUNK_BYTES = 7 * 384 * 2  # a row
    with tempfile.TemporaryDirectory() as name:
        source, encoder = tiny_source(Path(name), MARKS[-1]), load_encoder("minilm", device="cpu")
        settings, marks = ClusterSettings(workers=2, threads=1, gpus=0), Marks()
        with open_cluster(settings) as cluster:
            encode(
                source, guess_columns(source), Path(name) / "store", EncodeSpec(rows="mean"), encoder, progress=marks,
                run_parts=cluster_parts(cluster, encoder, settings),
            )  # fmt: skip
        parts = len(list((Path(name) / "store" / "parts").iterdir()))
    print(f"{parts:,} parts of one row; {marks.verdict()}")


if __name__ == "__main__":
    {"parts": overhead, "many": many, "encode": encode_many}[sys.argv[1]]()
