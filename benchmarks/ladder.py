"""What does a step of a ladder cost, compared with light fusions and with the encoder in every step of the ladder?

    python benchmarks/ladder.py STORE [--label COLUMN] [--pool mean] [--runs R …] [--dtype float32|bfloat16] [--json]

STORE is of MiniLM, with rows of `tokens`; one thread. One fusion after another takes steps over the same minibatches of
32 training examples, with all of their tokens. With 1 in `runs` a run trains alone (in bfloat16: in a stack of one);
more are a stack. A step is forward, backward and optimizer, with a head of two layers of 256. Its time is processor
time, which other work on the machine stretches less than wall time: the median over the minibatches of the smallest of
three tries. Memory is the peak bytes of tensors in a step of the whole stack, its weights and their moments included.
*live* adds a forward pass of the encoder over the minibatch to each step, as the ladder's authors do. Claims: `flat:8`
at most 3 times `attention`, `ladder:8` at most 6 times.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.encoder import load_encoder
from fusionkit.fit.loader.minibatches import layers_of_batch
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.train.meter import Meter
from fusionkit.fit.vectorized.looped import LoopedRuns
from fusionkit.fit.vectorized.stack import Stacked
from fusionkit.fit.vectorized.width import weight_bytes
from fusionkit.fusions import fusion_layers
from fusionkit.machine.memory import keep_freed_memory
from fusionkit.ragged import IntArray, flat_rows, pad
from fusionkit.specs import RunSpec
from fusionkit.store import Store, open_store
from fusionkit.store.layout import read_small

FUSIONS = {"attention": 0.0, "concat": 0.0, "extra-layers:1": 0.0, "flat:8": 3.0, "ladder:8": 6.0}  # and claims
LAYERS, HIDDEN = 7, 384  # of MiniLM
BATCHES, SIZE, TRIES = 12, 32, 3


def encoder_seconds(store: Store, split: TaskSplit, chosen: IntArray, dtype: str) -> float:
    """Median seconds of the encoder's forward pass over a minibatch of ``chosen``, int64 ``[minibatches, size]``."""
    encoder, ids = (
        load_encoder("minilm", device="cpu", compute_dtype=dtype),
        read_small(store.path, "train", "token_ids"),
    )
    return median(seconds_of(partial(encoder.forward, *padded(ids, split, each))) for each in chosen)


def padded(ids: IntArray, split: TaskSplit, examples: IntArray) -> tuple[Tensor, Tensor, Tensor]:
    """Sub-tokens, mask and segments of a minibatch, int64 ``[examples, longest]``."""
    at, offsets = flat_rows(split.offsets, split.sequences(examples))
    found, mask = pad(torch.from_numpy(ids[split.rows[at]]).long(), torch.from_numpy(offsets))
    return found, mask.long(), torch.zeros_like(found)


def step_cost(spec: RunSpec, batches: Sequence[Batch], runs: int, data: TaskData) -> tuple[float, int]:
    """Seconds per run and step, and the peak bytes of tensors in a step of all runs: weights and moments as well."""
    positions = fusion_layers(spec.fusion, tuple(range(LAYERS)), LAYERS)
    own = [layers_of_batch(batch, positions) for batch in batches]
    specs = [replace(spec, init_seed=seed) for seed in range(runs)]
    models = [build_model(each, len(positions), HIDDEN, len(data.labels), data.train.sides) for each in specs]
    alone = runs == 1 and spec.compute_dtype == "float32"
    stack = LoopedRuns(specs, models) if alone else Stacked(specs, models)

    def step(batch: Batch) -> None:
        stack.step([batch], [1e-3] * runs)

    meter = Meter()
    for batch in own:  # the first steps load kernels
        with meter if batch is own[-1] else nullcontext():
            step(batch)
    held = 3 * sum(map(weight_bytes, models)) + meter.peak_bytes  # both moments are there before the metered step too
    return median(seconds_of(partial(step, batch)) for batch in own) / runs, held


def seconds_of(work: Callable[[], object]) -> float:
    """Processor seconds of ``work``, the smallest of a few tries."""
    found = []
    for _ in range(TRIES):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--label")
    parser.add_argument("--pool", choices=["mean", "max"])
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    store = open_store(options.store)
    task, label = choose_task(store, None, options.label)
    data = load_task(store, task, label, options.pool, True)
    if len(data.train) < BATCHES * SIZE:
        parser.error(f"{options.store} has {len(data.train)} training examples; expected {BATCHES * SIZE} or more")
    spec = RunSpec(
        store="", task=data.task.name, label=data.label, fusion="attention", head=data.task.heads[0], pool=data.pool,
        compute_dtype=options.dtype,
    )  # fmt: skip
    chosen = np.random.default_rng(0).permutation(len(data.train))[: BATCHES * SIZE].reshape(BATCHES, SIZE)
    batches = [data.train.batch(some, tuple(range(len(store.layers)))) for some in chosen]
    rows = sum(len(batch.states) for batch in batches) / BATCHES
    print(f"{BATCHES} minibatches of {SIZE} examples, {rows:.0f} rows; {data.task.name}, {spec.head}, {options.dtype}")
    forward = encoder_seconds(store, data.train, chosen, options.dtype)
    steps, ratios = len(data.train) / SIZE, dict[str, float]()
    for runs in options.runs:
        told = {name: step_cost(replace(spec, fusion=name), batches, runs, data) for name in FUSIONS}
        for name, (seconds, held) in told.items():
            times = seconds / told["attention"][0]
            ratios[f"{name}, {runs} runs: times attention"] = round(times, 2)
            claim = f" (claim: {FUSIONS[name]:.0f})" if FUSIONS[name] else ""
            print(
                f"{runs:2} runs  {name:15} {1e3 * seconds:6.1f} ms a run and step, {times:5.1f} × attention{claim}; "
                f"{seconds * steps:6.1f} s an epoch, {held / 1e6:5.1f} MB"
            )
        if runs == 1:
            live = forward + told["ladder:8"][0]
            ratios["ladder:8: live over stored"] = round(live / told["ladder:8"][0], 2)
            print(f" 1 runs  ladder:8, live  {1e3 * live:6.1f} ms a run and step; {live * steps:6.1f} s an epoch")
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
