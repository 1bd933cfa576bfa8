"""How close do the store's reads and writes come to the bare disk?

    python benchmarks/store.py STORE [--json]

STORE is any finished store with uncompressed states (a few hundred MB of real ones, e.g. CoNLL-2003's). Reads of its
train split, from a warm page cache, are compared with the bare limit of each kind of read over the same bytes, and full
scans also with plain zarr and, where installed, zarrs and tensorstore. The write of one chunk is compared with a plain
synced write. All in one process, each pair in turn; medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from fusionkit.store import open_store
from fusionkit.store.chunks import write_chunk
from fusionkit.store.direct_io import write_past_cache
from fusionkit.store.manifest import split_layout
from fusionkit.store.presence import states_path

ROUNDS = 7
PLACES = 200  # random reads per round
RUN = 16  # consecutive rows per read


def median_seconds(*contenders: Callable[[], object]) -> list[float]:
    """Median seconds of each contender; they take turns, after one warm-up round."""
    times: list[list[float]] = [[] for _ in contenders]
    for round_ in range(ROUNDS + 1):
        for k, contender in enumerate(contenders):
            began = time.perf_counter()
            contender()
            if round_:
                times[k].append(time.perf_counter() - began)
    return [statistics.median(taken) for taken in times]


def peers(store: Path) -> dict[str, Callable[[], NDArray[Any]]]:
    """Full scans by other readers of the same array."""
    array = zarr.open_array(states_path(store) / "train" / "hidden_states", mode="r")
    found: dict[str, Callable[[], NDArray[Any]]] = {"zarr": lambda: np.asarray(array[:])}
    if find_spec("zarrs"):

        def with_zarrs() -> NDArray[Any]:
            with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
                return np.asarray(zarr.open_array(states_path(store) / "train" / "hidden_states", mode="r")[:])

        found["zarrs"] = with_zarrs
    if find_spec("tensorstore"):
        import tensorstore

        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(states_path(store) / "train" / "hidden_states")},
        }
        opened = tensorstore.open(spec).result()
        found["tensorstore"] = lambda: np.asarray(opened.read().result())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    opened = open_store(options.store)
    states, layout = opened["train"].hidden_states, split_layout(opened.manifest, "train")
    size = states.shape[0] * states.shape[1] * states.shape[2] * states.dtype.itemsize
    print(f"{opened.name}, train: {states.shape} {states.dtype}, {size / 1e6:,.0f} MB in {layout.chunks} chunks")
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=options.store.parent) as folder:
        plain = Path(folder) / "states.npy"
        np.save(plain, states[:])

        others = peers(options.store)
        whole, load, *scans = median_seconds(lambda: states[:], lambda: np.load(plain), *others.values())
        ratios["full_scan_over_np_load"] = load / whole
        print(f"full scan              {size / whole / 1e9:6.2f} GB/s   np.load     {size / load / 1e9:6.2f} GB/s")
        for name, peer in zip(others, scans, strict=True):
            ratios[f"full_scan_over_{name}"] = peer / whole
            print(f"                                     {name:<11} {size / peer / 1e9:6.2f} GB/s")

        mapped = np.load(plain, mmap_mode="r")
        starts = np.random.default_rng(0).integers(0, len(states) - RUN, PLACES).tolist()
        ours, bare = median_seconds(
            lambda: [states[start : start + RUN] for start in starts],
            lambda: [np.array(mapped[start : start + RUN]) for start in starts],
        )
        ratios["rows_time_over_memmap"] = ours / bare
        per = 1e6 / PLACES
        print(f"{RUN} rows at random      {ours * per:6.1f} µs     np.memmap   {bare * per:6.1f} µs")

        # The limit of reading one layer: a contiguous file with as many bytes.
        share = Path(folder) / "share.npy"
        np.save(share, states[:, -1:])
        layer, pages = median_seconds(lambda: states[:, -1], lambda: np.load(share))
        ratios["one_layer_time_over_its_pages"] = layer / pages
        print(f"one layer of all rows  {layer * 1e3:6.1f} ms     its pages   {pages * 1e3:6.1f} ms")

        block = np.ascontiguousarray(states[: layout.rows_per_chunk].transpose(1, 0, 2))
        target, raw = Path(folder) / "chunk", Path(folder) / "raw"
        written, bare_write = median_seconds(
            lambda: write_chunk(target, block, layout.arrays[0]), lambda: raw_write(raw, block)
        )
        ratios["write_over_raw_write"] = bare_write / written
        rates = block.nbytes / written / 1e9, block.nbytes / bare_write / 1e9
        print(f"write one chunk        {rates[0]:6.2f} GB/s   raw + sync  {rates[1]:6.2f} GB/s")
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


def raw_write(path: Path, block: NDArray[Any]) -> None:
    """Write the block's bytes into a plain file and sync it, past the page cache as chunks are written."""
    path.unlink(missing_ok=True)
    write_past_cache(path, [block.data.cast("B")])


if __name__ == "__main__":
    main()
