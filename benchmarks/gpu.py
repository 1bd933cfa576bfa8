"""Heads per minute on a GPU: stacks of many runs against training one head after another on the same GPU.

    python benchmarks/gpu.py DATA WORK [--device cuda] [--runs N …] [--only NAME …] [--epochs N] [--json]

DATA holds conll2003 and sst2; WORK takes the stores and keeps them. Both few-shot sweeps of `benchmarks/sweep.py` run
with four fusions per seed, one rate, and 16, 64 and 256 runs.

Contender: what `fusionkit fit --device cuda` does between open store and written records. (a) The plain loop of
`benchmarks/sweep.py` over features in the GPU's memory: it trains two heads per fusion, since its heads per minute do
not depend on their number. The claim is 20 × (a) at 64 runs. Also printed: the peak memory, and mean test scores. The
same runs start from the same data and weights in both, so their scores differ by rounding only. Both use float32, the
default.
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
    """Wait until the device has done all work that it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def hardware(device: str) -> str:
    """The name of the device that is measured."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else f"{device}, for a try"


def taken(device: str) -> str:
    """The peak of the device's allocated memory since the last call, as text."""
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

        _, same = swept(replace(whole, seeds=LOOP_SEEDS), store, options.device)  # also loads the kernels
        list(plain_loop(replace(whole, seeds=1), store, data, "float32", options.device))  # loads the kernels
        loop = plain_loop(replace(whole, seeds=LOOP_SEEDS), store, data, "float32", options.device)
        next(loop)
        wait_for(options.device)
        began = time.perf_counter()
        scores = list(loop)
        wait_for(options.device)
        each = (time.perf_counter() - began) / len(scores)
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
