"""How often each test calls a difference significant: where there is none, and where there is one.

    python benchmarks/significance.py DATA WORK [--seeds 100] [--tables 500]

DATA holds `trec6`. MiniLM encodes it once into WORK, 16-shot heads are fitted over it: `last`, `linear` and
`attention` with as many seeds as asked for, and `attention` once more with other init seeds. The latter is no other
method, so every significant difference to it is a false alarm. From the pairs of each comparison n are drawn again
and again, as if a study had had n seeds; printed is the share of those studies with p at most 0.05, or with an
interval that leaves 0 out. Runs and stores in WORK that are there already are not made again.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fusionkit.cli.sweep_table import SweepTable
from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.runs.pairing import pair_runs
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.statistics import INTERVALS, LEVEL, TESTS
from fusionkit.store import is_complete, open_store

SEEDS = (3, 5, 6, 8, 10, 20)
OTHER_INIT = 1_000_000  # added to the init seeds of the same method fitted again


def differences(data: Path, work: Path, seeds: int) -> dict[str, NDArray[np.float64]]:
    """Paired differences by comparison, one a seed."""
    store = work / "trec6.store"
    if not is_complete(store):
        source = open_source(str(data / "trec6"))
        encode(source, guess_columns(source), store, EncodeSpec(rows="mean"), load_encoder("minilm", device="cpu"))
    opened, folder = open_store(store), RunsFolder(work / "runs")
    fusions = ("last", "linear", "attention")
    specs = expand(opened, fusions=fusions, shots=(16,), seeds=seeds, epochs=(20,))
    again = [replace(spec, init_seed=OTHER_INIT + spec.init_seed) for spec in specs if spec.fusion == "attention"]
    torch.set_num_threads(1)
    with SweepTable([*specs, *again]) as progress:
        fit(opened, [*specs, *again], folder, progress)
    frame = folder.frame()
    frame = frame[frame["data_seed"] < seeds]
    first = frame[frame["init_seed"] < OTHER_INIT]
    last, linear, attention = (first[first["fusion"] == name] for name in fusions)
    found = {
        "attention again": (frame[frame["init_seed"] >= OTHER_INIT], attention),
        "attention − linear": (attention, linear),
        "linear − last": (linear, last),
    }
    return {name: pair_runs(*pair, ["fusion"]).differences for name, pair in found.items()}


def alarms(pairs: NDArray[np.float64], n: int, tables: int) -> dict[str, float]:
    """The share of studies of n pairs that find a difference, by method."""
    rng = np.random.default_rng(n)
    counts = dict.fromkeys([*(f"{name} test" for name in TESTS), *(f"{name} interval" for name in INTERVALS)], 0)
    for _ in range(tables):
        study = rng.choice(pairs, n, replace=False)
        for name, test in TESTS.items():
            counts[f"{name} test"] += test.p_value(study) <= 1 - LEVEL
        for name, interval in INTERVALS.items():
            low, high = interval(study)
            counts[f"{name} interval"] += not low <= 0 <= high
    return {name: count / tables for name, count in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--tables", type=int, default=500)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    for name, pairs in differences(arguments.data, arguments.work, arguments.seeds).items():
        mean, std = 100 * pairs.mean(), 100 * pairs.std(ddof=1)
        print(f"\n{name}: {mean:+.2f} points on average of {len(pairs)} pairs, standard deviation {std:.2f}\n")
        rows = {n: alarms(pairs, n, arguments.tables) for n in SEEDS if n <= len(pairs)}
        print("| seeds | " + " | ".join(rows[SEEDS[0]]) + " |\n|---|" + "---|" * len(rows[SEEDS[0]]))
        for n, found in rows.items():
            print(f"| {n} | " + " | ".join(f"{100 * share:.0f} %" for share in found.values()) + " |")


if __name__ == "__main__":
    main()
