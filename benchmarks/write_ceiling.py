"""How many bytes per second does this disk take, and how many does the writing of chunks reach?

    python benchmarks/write_ceiling.py [FOLDER …] [--threads 1 2 4 8] [--chunks N] [--json]

Threads write files of the size of a chunk (64 MiB of random float16), each from its own memory. Ways:

buffered    write into the page cache, nothing synced: the kernel's copy
synced      the same and fsync: what the disk takes
direct      O_DIRECT and fsync: past the page cache
chunks      what an encode does: a checksum with each piece, fsync, rename, fsync of the folder

Each is done twice: into new pages, and into warm ones, just after files of the same size were removed. The ways take
turns. Run it on /dev/shm and on the disk, given as FOLDERs; the default is the current folder.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fusionkit.store.chunks import write_chunk
from fusionkit.store.layout import ChunkedArray

SHAPE = (7, 12_484, 384)  # MiniLM's layers, 64 MiB
BLOCK = NDArray[np.float16]


def plain(path: Path, block: BLOCK, flags: int, sync: bool) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    try:
        left = block.data.cast("B")
        left = left[: len(left) // mmap.PAGESIZE * mmap.PAGESIZE]  # O_DIRECT takes whole pages
        while left:
            left = left[os.write(file, left) :]
        if sync:
            os.fsync(file)
    finally:
        os.close(file)


def as_chunk(path: Path, block: BLOCK) -> None:
    write_chunk(path, block, ChunkedArray("hidden_states", SHAPE, "float16"))


WAYS: dict[str, Callable[[Path, BLOCK], None]] = {
    "buffered": lambda path, block: plain(path, block, 0, sync=False),
    "synced": lambda path, block: plain(path, block, 0, sync=True),
    "direct": lambda path, block: plain(path, block, os.O_DIRECT, sync=True),
    "chunks": as_chunk,
}


def page_aligned() -> BLOCK:
    """Random numbers in page-aligned memory, which O_DIRECT needs."""
    memory = mmap.mmap(-1, int(np.prod(SHAPE)) * 2)
    block: BLOCK = np.frombuffer(memory, np.float16).reshape(SHAPE)
    block[:] = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    return block


def rate(way: Callable[[Path, BLOCK], None], folder: Path, blocks: list[BLOCK], chunks: int) -> float:
    """Bytes per second of writing ``chunks`` chunks with one thread per block."""

    def write(thread: int) -> None:
        for number in range(thread, chunks, len(blocks)):
            way(folder / str(number), blocks[thread])

    with ThreadPoolExecutor(len(blocks)) as pool:
        began = time.perf_counter()
        list(pool.map(write, range(len(blocks))))
        return chunks * blocks[0].nbytes / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[Path()])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--chunks", type=int, default=16, help="files of 64 MiB of each try")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    blocks = [page_aligned() for _ in range(max(options.threads))]
    found: dict[str, list[float]] = {}
    for place in options.folders:
        for repeat in range(options.repeats):
            for threads in options.threads:
                for name, way in WAYS.items():
                    with tempfile.TemporaryDirectory(dir=place) as folder:
                        for pages in ("new", "warm"):
                            target = Path(folder) / pages
                            target.mkdir()
                            try:
                                speed = rate(way, target, blocks[:threads], options.chunks)
                            except OSError as error:  # a file system without O_DIRECT
                                if repeat == 0:
                                    print(f"{place}, {name}: {error.strerror}")
                                break
                            found.setdefault(f"{place}, {threads} threads, {name}, {pages} pages", []).append(speed)
                            shutil.rmtree(target)
    for label, speeds in found.items():
        low, middle, high = (each(speeds) / 1e9 for each in (min, statistics.median, max))
        print(f"{label:60} {middle:6.2f} GB/s ({low:.2f} … {high:.2f})")
    if options.json:
        print(json.dumps({label: statistics.median(speeds) for label, speeds in found.items()}))


if __name__ == "__main__":
    main()
