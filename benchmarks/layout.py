"""Row-major or layer-major inside a chunk: what each kind of read costs.

    python benchmarks/layout.py [--json]

Two arrays, as wide as MiniLM's and roberta-large's states, each in both orders, mapped into memory and warm. Printed:
median milliseconds of copies into memory. The numbers themselves do not matter, so they are random.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHAPES = {"minilm": (50_000, 7, 384), "roberta-large": (6_550, 25, 1024)}
ROUNDS = 15
Reading = Callable[[NDArray[Any]], object]


def medians(*contenders: Callable[[], object]) -> list[float]:
    """Median milliseconds of each contender; they take turns, after one warm-up round."""
    times: list[list[float]] = [[] for _ in contenders]
    for round_ in range(ROUNDS + 1):
        for k, contender in enumerate(contenders):
            began = time.perf_counter()
            contender()
            if round_:
                times[k].append(1e3 * (time.perf_counter() - began))
    return [statistics.median(taken) for taken in times]


def readings(starts: NDArray[np.int64], scattered: NDArray[np.int64]) -> dict[str, Reading]:
    """Kinds of reads of ``[rows, layers, hidden]``, each a copy; slices of rows keep the source's memory order."""
    return {
        "minibatch": lambda source: [source[start : start + 16].copy("K") for start in starts],
        "16 rows": lambda source: source[starts[0] : starts[0] + 16].copy("K"),
        "one layer": lambda source: source[:, -1].copy(),
        "everything": lambda source: source.copy("K"),
        "512 scattered": lambda source: source[scattered],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    ratios: dict[str, float] = {}
    for name, (rows, layers, hidden) in SHAPES.items():
        rng = np.random.default_rng(0)
        values = rng.standard_normal((rows, layers, hidden), dtype=np.float32).astype(np.float16)
        with tempfile.TemporaryDirectory() as folder:
            values.tofile(Path(folder) / "rows")
            np.ascontiguousarray(values.transpose(1, 0, 2)).tofile(Path(folder) / "layers")
            by_row = np.memmap(Path(folder) / "rows", np.float16, "r", shape=(rows, layers, hidden)).view(np.ndarray)
            mapped = np.memmap(Path(folder) / "layers", np.float16, "r", shape=(layers, rows, hidden)).view(np.ndarray)
            by_layer = mapped.transpose(1, 0, 2)  # the same [rows, layers, hidden], in the other order
            starts, scattered = rng.integers(0, rows - 16, 32), rng.integers(0, rows, 512)
            for kind, read in readings(starts, scattered).items():
                row, layer = medians(partial(read, by_row), partial(read, by_layer))
                ratios[f"{name} {kind}: layer-major over row-major"] = layer / row
                print(f"{name:<14} {kind:<14} row-major {row:9.3f} ms   layer-major {layer:9.3f} ms", flush=True)
    if options.json:
        print(json.dumps({kind: round(ratio, 3) for kind, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
