"""Heads per minute on a GPU with steps recorded as CUDA graphs, compared with steps launched kernel by kernel.

    python benchmarks/graphs.py STORE [--label COLUMN] [--head NAME] [--fusion NAME …] [--runs N …] [--shots N]
        [--epochs N] [--device cuda] [--json]

STORE has rows of `words` or `tokens`. Each fusion is a few-shot sweep of N seeds, first with CUDA graphs and then
without, after one run that loads the kernels. Scores of both are the same, to rounding. On a CPU nothing is recorded:
`--device cpu` tries the script.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np

from fusionkit.errors import FusionkitError, UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.vectorized.cuda_graphs import CudaGraphs
from fusionkit.machine.devices import device_of
from fusionkit.specs import RunSpec
from fusionkit.store import Store, open_store

FUSIONS = ("attention", "concat", "extra-layers:1", "flat:8", "ladder:8")


def swept(store: Store, specs: list[RunSpec], device: str, recorded: bool) -> tuple[float, float]:
    """Heads per minute, and the mean test score."""
    plain = patch.object(CudaGraphs, "do", lambda graphs, place, what, work: work())
    with tempfile.TemporaryDirectory() as folder, nullcontext() if recorded else plain:
        began = time.perf_counter()
        records = fit(store, specs, RunsFolder(Path(folder) / "runs"), workers=None, device=device)
        seconds = time.perf_counter() - began
    return 60 * len(records) / seconds, float(np.mean([record["score"] for record in records]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--label")
    parser.add_argument("--head")
    parser.add_argument("--fusion", nargs="+", default=list(FUSIONS))
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 16, 64], help="seeds of each fusion")
    parser.add_argument("--shots", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    try:
        device_of(options.device)
    except UsageError as error:
        parser.error(f"{error}\n  no figure can be taken here; --device cpu tries the script")
    try:
        store = open_store(options.store)
        sweeps = {
            (fusion, runs): expand(
                store, label=options.label, head=options.head, fusions=(fusion,), seeds=runs, lrs=(1e-3,),
                shots=(options.shots,), epochs=(options.epochs,),
            )
            for fusion in options.fusion
            for runs in options.runs
        }  # fmt: skip
    except FusionkitError as error:
        parser.error(str(error))
    ratios: dict[str, float] = {}
    for (fusion, runs), specs in sweeps.items():
        swept(store, specs[:1], options.device, recorded=True)
        (rate, score), (plain, same) = (swept(store, specs, options.device, on) for on in (True, False))
        ratios[f"{fusion}, {runs} runs recorded over launched"] = round(rate / plain, 2)
        print(
            f"{fusion}, {runs} runs: {rate:,.1f} heads a minute recorded, {plain:,.1f} launched, "
            f"{rate / plain:.2f} ×; mean test score {score:.4f}, {same:.4f}",
            flush=True,
        )
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
