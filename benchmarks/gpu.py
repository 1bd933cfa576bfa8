"""Heads per minute on a GPU: stacks of many runs against training one head after another on the same GPU.

    python benchmarks/gpu.py DATA WORK [--device cuda] [--runs N …] [--only NAME …] [--epochs N] [--json]

DATA holds conll2003 and sst2; WORK takes the stores and keeps them. Both few-shot sweeps of `benchmarks/sweep.py`, four
fusions of them a seed, with 16, 64 and 256 runs.

Contender: what `fusionkit fit --device cuda` does between open store and written records. (a) The plain loop of
`benchmarks/sweep.py` over features in the GPU's memory: two heads of each fusion, as many a minute as any number of
them. The claim is 20 × (a) at 64 runs. Beside them the most memory that was taken, and mean test scores: those of the
same runs in both have the same data and weights to begin with, so they differ by rounding alone. In float32, as both
are without being asked for more.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sweep import CASES, FUSIONS, Case, contender, encoded, plain_loop  # type: ignore[import-not-found]

from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.errors import UsageError
from fusionkit.machine.devices import device_of
from fusionkit.store import Store, open_store

FEW_SHOT = ("few-shot-classification", "few-shot-tagging")
CLAIM, CLAIMED_RUNS = 20.0, 64
LOOP_SEEDS = 2


def wait_for(device: str) -> None:
    """Until the device has done what it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def hardware(device: str) -> str:
    """What the figures are of."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else f"{device}, for a try"


def taken(device: str) -> str:
    """The most of the device's memory that was taken since the last call."""
    if torch.device(device).type != "cuda":
        return "not counted"
    most = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return f"{most / 2**20:,.0f} MB"


def swept(case: Case, store: Store, device: str) -> tuple[float, list[float]]:
    """Seconds of a sweep, and its test scores."""
    with tempfile.TemporaryDirectory() as folder:
        found: tuple[float, list[float]] = contender(case, store, Path(folder) / "runs", "float32", device)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, nargs="+", default=[16, 64, 256], help="multiples of the four fusions")
    parser.add_argument("--only", nargs="+", choices=FEW_SHOT, default=list(FEW_SHOT))
    parser.add_argument("--epochs", type=int, help="fewer than the sweeps have")
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    try:
        device_of(options.device)
    except UsageError as error:
        parser.error(f"{error}\n  no figure can be taken here; --device cpu tries the script")
    options.work.mkdir(parents=True, exist_ok=True)
    print(f"device: {hardware(options.device)}")
    ratios: dict[str, float] = {}
    for name in options.only:
        whole = CASES[name]
        whole = replace(whole, rates=(1e-3,), epochs=options.epochs or whole.epochs)
        store = open_store(encoded(options.data, options.work, whole.store)[0])
        task, label = choose_task(store, None, None)
        data = load_task(store, task, label, None)

        _, same = swept(replace(whole, seeds=LOOP_SEEDS), store, options.device)  # kernels are loaded, too
        loop = plain_loop(replace(whole, seeds=LOOP_SEEDS), store, data, "float32", options.device)
        next(loop)
        scores = [next(loop)]  # with the loading of its kernels: not timed
        began = time.perf_counter()
        scores += loop
        wait_for(options.device)
        each = (time.perf_counter() - began) / (len(scores) - 1)
        print(
            f"{name}: (a) {60 / each:,.1f} heads a minute, mean test score {np.mean(scores):.4f}, "
            f"of the same runs as a sweep {np.mean(same):.4f}",
            flush=True,
        )
        taken(options.device)
        for runs in options.runs:
            seconds, found = swept(replace(whole, seeds=-(-runs // len(FUSIONS))), store, options.device)
            ratio = each * len(found) / seconds
            ratios[f"{name}, {len(found)} runs over (a)"] = round(ratio, 2)
            claim = f" (claim {CLAIM:g})" if len(found) == CLAIMED_RUNS else ""
            print(
                f"    {len(found)} runs: {60 * len(found) / seconds:,.1f} heads a minute, {ratio:.2f} × (a){claim}, "
                f"{taken(options.device)}, mean test score {np.mean(found):.4f}",
                flush=True,
            )
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
