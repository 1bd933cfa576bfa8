"""What does a training step of one head cost: alone, in a stack by vmap, and in a stack by batched products?

    python benchmarks/stacking.py [--rows N …] [--runs R …] [--fusion NAME …] [--json]

Random states of MiniLM's shape (7 × 384), one thread. The numbers of rows are those of a minibatch (32 pooled texts,
232 words of 16 sentences). Alone means one model after another over the same minibatch, as `fit` trains runs that
cannot be stacked. Batched products are those of `fusionkit/fit/vectorized/layer_mixes.py`, which only some fusions
have. Printed: milliseconds per run and step, the smallest of a few tries, all in one process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import replace
from unittest import mock

import torch

from fusionkit.dataset.batch import Batch
from fusionkit.fit.model.fused import FusedModel, build_model
from fusionkit.fit.vectorized import stack as stacks
from fusionkit.fit.vectorized.layer_mixes import stacked_fusion
from fusionkit.fit.vectorized.looped import LoopedRuns
from fusionkit.fit.vectorized.stack import Stack, Stacked
from fusionkit.fusions import fusion_layers
from fusionkit.specs import RunSpec

LAYERS, HIDDEN, CLASSES, TRIES = 7, 384, 9, 5
DEFAULT = ("last", "linear", "attention", "element-wise", "mlp-weights", "concat", "concat-affine", "dwatt")


def seconds(stack: Stack, batch: Batch) -> float:
    """Seconds per step of the whole stack, the smallest of a few tries."""
    rates, steps = [1e-3] * len(stack.specs), max(1, 24 // len(stack.specs))
    stack.step([batch], rates)
    found = []
    for _ in range(TRIES):
        began = time.perf_counter()
        for _ in range(steps):
            stack.step([batch], rates)
        found.append((time.perf_counter() - began) / steps)
    return min(found)


def costs(fusion: str, rows: int, runs: int) -> dict[str, float]:
    """Milliseconds per run and step of each way."""
    layers = len(fusion_layers(fusion, tuple(range(LAYERS)), LAYERS))
    offsets = torch.arange(rows + 1)
    batch = Batch(torch.randn(rows, layers, HIDDEN), offsets, torch.randint(CLASSES, (rows,)), None, offsets)
    spec = RunSpec(store="s", task="tagging", label="l", fusion=fusion, head="tagger")
    specs = [replace(spec, init_seed=seed) for seed in range(runs)]

    def models() -> list[FusedModel]:
        return [build_model(spec, layers, HIDDEN, CLASSES) for spec in specs]

    told = {"alone": seconds(LoopedRuns(specs, models()), batch)}
    with mock.patch.object(stacks, "stacked_fusion", return_value=None):
        told["vmap"] = seconds(Stacked(specs, models()), batch)
    if stacked_fusion(models()[0].fusion) is not None:
        told["products"] = seconds(Stacked(specs, models()), batch)
    return {way: 1e3 * value / runs for way, value in told.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 232])
    parser.add_argument("--runs", type=int, nargs="+", default=[8])
    parser.add_argument("--fusion", nargs="+", default=DEFAULT)
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    ratios: dict[str, float] = {}
    for fusion, rows, runs in itertools.product(options.fusion, options.rows, options.runs):
        told = costs(fusion, rows, runs)
        line = "   ".join(f"{way} {value:7.3f} ms" for way, value in told.items())
        print(f"{fusion:16} {rows:4} rows {runs:3} runs   {line}", flush=True)
        for way in told.keys() - {"alone"}:
            ratios[f"{fusion}, {rows} rows, {runs} runs: alone over {way}"] = round(told["alone"] / told[way], 2)
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
