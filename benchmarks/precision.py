"""What does training in bfloat16 change: the time of a step, and the final scores?

    python benchmarks/precision.py DATA WORK [--fusion NAME …] [--runs R] [--seeds K] [--json]

DATA holds conll2003; WORK takes the store and keeps it. A stack of runs under a tagger trains on MiniLM's words of 512
sentences in minibatches of 16, as `fit --shots 128` draws and shuffles them, with one thread. Epochs in float32 and in
bfloat16 alternate, so that other work on the machine disturbs both. Printed: microseconds per run and row, the median
over the epochs. The first epoch of each precision is left out, as it makes the kernels for its shapes.

With --seeds each fusion is also trained in both precisions, on 128 sentences for 25 epochs, and test F1 is compared run
by run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sweep import encoded  # type: ignore[import-not-found]  # beside this file

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.draws import uniform_draw
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.loader.minibatches import GatherLoader, load_into_memory
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.vectorized.stack import stack_of
from fusionkit.fusions import fusion_layers
from fusionkit.machine.memory import keep_freed_memory
from fusionkit.specs import TRAINING_DTYPES, RunSpec
from fusionkit.store import Store, open_store
from fusionkit.store.layer_positions import positions_of

FUSIONS = ("last", "linear", "attention", "concat", "concat-affine", "dwatt", "extra-layers:1")
EPOCHS, RATE = 4, 5e-4


def stepped(spec: RunSpec, runs: int, store: Store, data: TaskData) -> dict[str, float]:
    """Microseconds per run and row in each precision."""
    layers = fusion_layers(spec.fusion, store.layers, len(store.layers))
    draw = data.train.subset(uniform_draw(len(data.train), 128, data.classes, 0))
    held = load_into_memory(draw, list(positions_of(layers, store.layers)))
    feeder = GatherLoader(held, range(len(layers)), Sampler(held, "shuffle", 0), 16)
    stacks = {}
    for dtype in TRAINING_DTYPES:
        specs = [replace(spec, init_seed=seed, compute_dtype=dtype) for seed in range(runs)]
        models = [model_of(each, len(layers), store.hidden, {"": len(data.labels)}) for each in specs]
        stacks[dtype] = stack_of(specs, models)
    took: dict[str, list[float]] = {dtype: [] for dtype in TRAINING_DTYPES}
    for epoch in range(EPOCHS + 1):
        batches: list[Batch] = list(feeder.epoch(epoch))
        for dtype, stack in stacks.items():
            began = time.perf_counter()
            for batch in batches:
                stack.step([batch], [RATE] * runs)
            took[dtype].append(1e6 * (time.perf_counter() - began) / runs / len(draw.rows))
    return {dtype: statistics.median(times[1:]) for dtype, times in took.items()}


def scored(fusion: str, seeds: int, store: Store) -> dict[str, list[float]]:
    """Test F1 in percent of each seed, in each precision."""
    found = {}
    for dtype in TRAINING_DTYPES:
        specs = expand(
            store, head="tagger", fusions=(fusion,), seeds=seeds, shots=(32,), epochs=(25,), batch_sizes=(16,),
            lrs=(RATE,), validate_on=800, validate_every=5, compute_dtype=dtype,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            records = fit(store, specs, RunsFolder(Path(folder) / "runs"))
        found[dtype] = [100 * record["score"] for record in records]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--fusion", nargs="+", default=FUSIONS)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    path, _ = encoded(options.data, options.work, "conll2003")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    store = open_store(path)
    task, label = choose_task(store, None, None)
    data = load_task(store, task, label, None)
    ratios: dict[str, float] = {}
    changes: list[float] = []
    for fusion in options.fusion:
        (spec,) = expand(store, head="tagger", fusions=(fusion,), seeds=1, shots=(128,))
        times = stepped(spec, options.runs, store, data)
        ratios[fusion] = round(times["float32"] / times["bfloat16"], 2)
        line = f"{fusion:16} float32 {times['float32']:6.1f} µs a row, bfloat16 {times['bfloat16']:6.1f}: "
        line += f"{ratios[fusion]:.2f} × as fast"
        if options.seeds:
            scores = scored(fusion, options.seeds, store)
            change = np.subtract(scores["bfloat16"], scores["float32"])
            changes += change.tolist()
            spread = f" ± {change.std(ddof=1):.2f}" if len(change) > 1 else ""
            line += f"; test F1 {np.mean(scores['float32']):.1f}, in bfloat16 {change.mean():+.2f}{spread}"
        print(line, flush=True)
    if len(changes) > 1:
        error = np.std(changes, ddof=1) / len(changes) ** 0.5
        print(f"all {len(changes)} pairs: {np.mean(changes):+.2f} ± {error:.2f} (standard error)")
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
