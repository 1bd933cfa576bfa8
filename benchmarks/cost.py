"""Does a run that trains alone cost what its record says?

    python benchmarks/cost.py DATA WORK [--only CASE …] [--repeats N] [--json]

DATA holds conll2003 and sst2; WORK takes the stores and keeps them. All fusions of a case are trained together first,
by as many processes as there are cores. Each run's record says what it would take alone (`seconds_alone`). Then one run
of each fusion is trained alone, in this process with one thread, and timed from its first minibatch to its scores, in
processor time, as in the record, and in wall time. Printed: all of them, and the ratio of the record to the processor
time. Claim: within 15 %. On an idle machine the two times agree; on a busy one wall time depends on other work too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from sweep import encoded  # type: ignore[import-not-found]  # beside this file

from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.executor.context import SweepContext
from fusionkit.machine.memory import keep_freed_memory
from fusionkit.specs import RunSpec
from fusionkit.store import Store, open_store

CLAIM = 0.15
FUSIONS = ("last", "linear", "attention", "concat", "dwatt:scale=yes")
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "sst2 few-shot": (["sst2"], {"shots": (16,), "epochs": (50,)}),
    "conll2003 few-shot": (["conll2003"], {"shots": (128,), "epochs": (6,)}),
    "conll2003": (["conll2003"], {"epochs": (1,)}),
    # These rows are too many to be held in memory: each epoch reads them from the store.
    "conll2003 tokens": (["conll2003", "--rows", "tokens"], {"epochs": (2,)}),
}


def real_seconds(store: Store, spec: RunSpec) -> tuple[float, float]:
    """Processor and wall seconds of training the run alone, with its data loaded before."""
    context = SweepContext(store)
    context.data(spec)
    began = time.process_time(), time.perf_counter()
    for _ in context.train([spec], lambda _: None):
        pass
    return time.process_time() - began[0], time.perf_counter() - began[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    keep_freed_memory()
    ratios: dict[str, float] = {}
    for case in options.only:
        name, choices = CASES[case]
        path, _ = encoded(options.data, options.work, *name)
        store = open_store(path)
        specs = expand(store, fusions=FUSIONS, seeds=2, **choices)
        folder = options.work / "cost-runs"
        shutil.rmtree(folder, ignore_errors=True)
        records = fit(store, specs, RunsFolder(folder), workers=None)
        print(f"{case}: seconds of a run, recorded beside real (claim: within {CLAIM:.0%})")
        for fusion in FUSIONS:
            alike = [record for record in records if record["spec"]["fusion"] == fusion]
            spec = next(spec for spec in specs if spec.fusion == fusion)
            told = [record["seconds_alone"] for record in alike]
            real = [real_seconds(store, spec) for _ in range(options.repeats)]
            ratio = median(told) / median(processor for processor, _ in real)
            ratios[f"{case}, {fusion}"] = round(ratio, 3)
            shares = ", ".join(f"{record['seconds']:.2f}" for record in alike)
            print(
                f"  {fusion:16} recorded {', '.join(f'{each:.2f}' for each in told)}; "
                f"real {', '.join(f'{each:.2f}' for each, _ in real)} "
                f"(wall {', '.join(f'{each:.2f}' for _, each in real)}); {ratio:.2f}"
                f"{'' if abs(ratio - 1) <= CLAIM else '  (off)'}; its share of the sweep {shares}"
            )
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
