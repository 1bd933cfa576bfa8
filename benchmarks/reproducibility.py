"""What changes a score besides its seed, and by how much?

    python benchmarks/reproducibility.py DATA WORK [--only CASE …] [--seeds N]

DATA holds conll2003, atis and trec6; WORK takes the stores and keeps them. Runs of four fusions and several seeds are
trained repeatedly, each time with one change that should not matter: none, the number of runs per stack, the number of
threads, the instruction set in training, the instruction set in encoding, the precision of matrix products. Each
variant is a process of its own. Printed: the number of runs whose test score is equal, the largest and the root mean
square difference over all runs, and the largest difference of a fusion's mean, in points, beside the standard deviation
between seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fusionkit.fit import expand
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.train.result import RunResult
from fusionkit.specs import RunSpec
from fusionkit.store import open_store

FUSIONS = ("last", "linear", "attention", "concat")
# The data set, its rows in the store, and the choices of its runs.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "TREC-6": ("trec6", "mean", {"epochs": (10,)}),
    "ATIS slots": ("atis", "words", {"label": "slots", "epochs": (5,)}),
    "CoNLL-2003, 64 sentences": ("conll2003", "words", {"label": "tags", "shots": (16,), "epochs": (25,)}),
}
# PyTorch, oneDNN and MKL choose their kernels by these.
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
VARIANTS: dict[str, dict[str, Any]] = {
    "the same again": {},
    "one run a stack": {"width": 1},
    "two threads": {"threads": 2},
    "AVX2 in training": {"env": AVX2},
    "AVX2 in encoding": {"store": "avx2"},
    "bfloat16 products": {"compute_dtype": "bfloat16"},
}


def store_of(data: Path, work: Path, case: str, kind: str) -> Path:
    """The case's store, encoded with this machine's instructions or with AVX2."""
    name, rows, _ = CASES[case]
    path = work / f"{name}-{rows}{'-avx2' if kind == 'avx2' else ''}.store"
    command = [sys.executable, "-m", "fusionkit", "encode", str(data / name), "--rows", rows, "--out", str(path)]
    subprocess.run(command, check=True, env={**os.environ, **(AVX2 if kind == "avx2" else {})}, capture_output=True)
    return path


def specs_of(path: Path, case: str, seeds: int) -> list[RunSpec]:
    return expand(open_store(path), fusions=FUSIONS, seeds=seeds, lrs=(2e-3,), **CASES[case][2])


def scores(path: Path, case: str, seeds: int, threads: int, width: int, compute_dtype: str) -> dict[str, float]:
    """Test scores in percent by fusion and seed, of runs trained in this process."""
    torch.set_num_threads(threads)
    specs = [replace(spec, compute_dtype=compute_dtype) for spec in specs_of(path, case, seeds)]
    context, found = SweepContext(open_store(path)), {}
    for unit in [[spec] for spec in specs] if width == 1 else [specs]:
        for spec, result in context.train(unit, lambda _: None):
            assert isinstance(result, RunResult)
            assert result.score is not None
            found[f"{spec.fusion} {spec.init_seed}"] = 100 * result.score
    return found


def trained(data: Path, work: Path, case: str, seeds: int, variant: dict[str, Any]) -> dict[str, float]:
    """What :func:`scores` gives, from a process of its own, whose environment chooses the instruction set."""
    given: dict[str, Any] = {"threads": 1, "width": 0, "compute_dtype": "float32"} | variant
    path = store_of(data, work, case, given.get("store", "own"))
    asked = json.dumps([str(path), case, seeds, given["threads"], given["width"], given["compute_dtype"]])
    command = [sys.executable, __file__, "--worker", asked]
    done = subprocess.run(command, check=True, env={**os.environ, **given.get("env", {})}, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        path, *rest = json.loads(sys.argv[2])
        print(json.dumps(scores(Path(path), *rest)))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    print(f"{torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}; test scores in points")
    for case in options.only:
        base = trained(options.data, options.work, case, options.seeds, {})
        by_fusion = [[base[f"{fusion} {seed}"] for seed in range(options.seeds)] for fusion in FUSIONS]
        spread = float(np.mean([np.std(each, ddof=1) for each in by_fusion]))
        print(f"{case}: {len(base)} runs, standard deviation between seeds {spread:.2f}")
        for name, variant in VARIANTS.items():
            found = trained(options.data, options.work, case, options.seeds, variant)
            off = np.array([found[run] - base[run] for run in base])
            of_fusion = [[found[run] - base[run] for run in base if run.split()[0] == fusion] for fusion in FUSIONS]
            same, means = int((off == 0).sum()), [abs(float(np.mean(each))) for each in of_fusion]
            print(
                f"  {name:18} {same:2} of {len(off)} runs equal; off by {np.abs(off).max():.2f} at most, "
                f"{np.sqrt((off**2).mean()):.2f} on average; a fusion's mean by {max(means):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
