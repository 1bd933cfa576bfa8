"""What does a stack of runs with a linear fusion cost, folded into the head's first layer and apart from it?

    python benchmarks/folding.py [--runs R] [--rows N] [--json]

Random states of MiniLM's shape (6 × 384) and of roberta-large's (24 × 1024), one thread. A step reads N rows, those of
a minibatch of 16 sentences. Scoring reads 1,024 rows of a split of 51,362, as many as CoNLL-2003's validation has
words. Printed for both: milliseconds of each way, the smallest of a few tries in turn, and the share of multiplications
that remains after folding, which bounds the gain. A step also has the optimizer's passes over all weights, which are
the same both ways. Where the count says that folding does not pay, `fit` does not fold, and both ways are the same.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fusionkit.dataset.batch import Batch
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.vectorized.folding import Folding
from fusionkit.fit.vectorized.stack import Stacked
from fusionkit.machine.memory import keep_freed_memory
from fusionkit.specs import RunSpec

SHAPES = {"MiniLM": (6, 384), "roberta-large": (24, 1024)}
CLASSES, SPLIT_ROWS, BLOCK_ROWS, TRIES = 9, 51_362, 1024, 5


def fastest(work: Callable[[Stacked], object], stacks: Sequence[Stacked]) -> list[float]:
    """Milliseconds that ``work`` takes with each stack, the smallest of a few tries in turn after a warm-up round."""
    found = [float("inf")] * len(stacks)
    for round_ in range(TRIES + 1):
        for k, stack in enumerate(stacks):
            began = time.perf_counter()
            work(stack)
            if round_:
                found[k] = min(found[k], 1e3 * (time.perf_counter() - began))
    return found


def taken(stacks: Sequence[Stacked], batch: Batch, *, learns: bool) -> list[float]:
    """Milliseconds per stack of a step, or of scoring a block of a large split."""
    rates = [1e-3] * len(stacks[0].specs)
    if learns:
        return fastest(lambda stack: stack.step([batch], rates), stacks)
    return fastest(lambda stack: stack.decide(batch, SPLIT_ROWS), stacks)


def batch_of(rows: int, layers: int, hidden: int) -> Batch:
    offsets = torch.arange(rows + 1)
    return Batch(torch.randn(rows, layers, hidden), offsets, torch.randint(CLASSES, (rows,)), None, offsets)


def left(folding: Folding, rows: int, *, learns: bool) -> float:
    """The share of the multiplications by fusion and first layer that remains if ``rows`` rows are folded at once."""
    to_inputs, to_outputs = (2, 3) if learns else (1, 1)
    apart = rows * folding.between * (to_inputs * folding.inputs + to_outputs * folding.outputs)
    return 1 - folding.saves(rows, learns=learns) / apart


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=232)
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    ratios: dict[str, float] = {}
    for (encoder, (layers, hidden)), fusion, head in (
        (shape, fusion, head)
        for shape in SHAPES.items()
        for fusion in ("concat", "concat-affine")
        for head in ("linear-tagger", "tagger")
    ):
        spec = RunSpec(store="s", task="tagging", label="l", fusion=fusion, head=head)
        specs = [replace(spec, init_seed=seed) for seed in range(options.runs)]
        stacks = [Stacked(specs, [build_model(s, layers, hidden, CLASSES) for s in specs]) for _ in range(2)]
        folding, stacks[1]._folding = stacks[0]._folding, None
        assert folding is not None
        for what, rows, folds, learns in (
            ("step", options.rows, options.rows, True),
            ("scoring", BLOCK_ROWS, SPLIT_ROWS, False),
        ):
            folded, apart = taken(stacks, batch_of(rows, layers, hidden), learns=learns)
            ratios[f"{encoder}, {fusion} + {head}, {what}"] = round(apart / folded, 2)
            print(
                f"{encoder:14} {fusion:14} {head:14} {what:8} folded {folded:8.1f} ms   apart {apart:8.1f} ms   "
                f"{apart / folded:5.1f} × ({left(folding, folds, learns=learns):.0%} of the products left)",
                flush=True,
            )
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
