"""Does the time per head fall as runs are added, and what limits it: the core's matrix products or its memory?

    python benchmarks/width.py DATA WORK [--runs N …] [--only CASE …] [--svg FILE] [--json]

DATA holds conll2003 and sst2; WORK takes the stores and keeps them. Runs of `attention` and of `concat` with one data
seed, one process, one thread: SST-2, rows of mean, 32 examples, 20 epochs; CoNLL-2003, words, 512 sentences, one epoch,
800 sentences of validation. Printed: milliseconds per run and epoch, of training and of scoring.

The work is counted from the shapes, per run. P is the number of weights in a run's matrices, n the number of rows.
Training, per step: 2 n P operations forward, as many for the gradients of the matrices, and as many for the gradients
of their inputs, which a first matrix over the states (`concat`) does not need; 4 · 10 P bytes (weights read forward and
backward, gradients written and read, weights and both moments read and written by the optimizer), and the states, read
forward and backward once per stack. Scoring: 2 n P operations; the bytes of weights in bfloat16, once per block, and of
the states in two bytes per number, once per stack and three times for all runs together, which is too little where
scoring is in float32. `attention` adds 4 · layers · hidden operations per row for its layer scores and its mean, and as
many backward. Other operations between two matrices are not counted, nor is what a cache saves.

For comparison, in the same run: plain products of the first matrices' shapes, for training in float32, for scoring in
bfloat16 where the CPU has instructions for it and else in float32; and a copy of 256 MiB.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import altair as alt
import numpy as np
import pandas as pd
import torch
from sweep import encoded  # type: ignore[import-not-found]  # beside this file
from torch import nn

from fusionkit.dataset.draws import uniform_draw
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit import expand
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.train import loop
from fusionkit.fit.train.decisions import BLOCK_ROWS
from fusionkit.fit.vectorized.width import weight_bytes, width_of
from fusionkit.fusions import fusion_layers
from fusionkit.machine.bfloat16 import has_bfloat16
from fusionkit.machine.memory import keep_freed_memory
from fusionkit.report.styles import styles_of
from fusionkit.specs import RunSpec
from fusionkit.store import open_store

CASES = {"sst2": ("classifier", 16, 20, None), "conll2003": ("tagger", 128, 1, 800)}  # head, shots, epochs, watched
FUSIONS = ("attention", "concat")
STAGES = {"train": "training", "score": "scoring"}
RUNS = (1, 2, 4, 8, 16, 32, 64)
COPIED, TRIES, SECONDS = 256 << 20, 3, 0.05
SCORED_IN = torch.bfloat16 if has_bfloat16() else torch.float32


@dataclass(frozen=True)
class Work:
    """Work per run and epoch: multiplications and additions, and bytes, of training and of scoring."""

    products: float
    bytes: float
    scored: float
    scored_bytes: float


def per_second(work: Callable[[], Any], amount: float) -> float:
    """``amount`` times the calls of ``work`` per second, in the best of a few tries."""
    work()
    found = []
    for _ in range(TRIES):
        began, times = time.perf_counter(), 0
        while time.perf_counter() - began < SECONDS or not times:
            work()
            times += 1
        found.append(amount * times / (time.perf_counter() - began))
    return max(found)


def product(runs: int, rows: int, wide: int, out: int, dtype: torch.dtype, shared: bool) -> float:
    """GFLOP/s of the plain products of all runs, over rows that the runs share or over separate rows per run."""
    weight = torch.randn(runs, wide, out).to(dtype)
    x = torch.randn(rows, wide).to(dtype) if shared else torch.randn(runs, rows, wide).to(dtype)
    turned = weight.transpose(0, 1).reshape(wide, runs * out).contiguous() if shared else weight
    return per_second(lambda: x @ turned, 2e-9 * runs * rows * wide * out)


def copied() -> float:
    """GB/s that a plain copy reads and writes."""
    source, target = torch.ones(COPIED // 4), torch.zeros(COPIED // 4)
    return per_second(lambda: target.copy_(source), 2e-9 * COPIED)


def timed(specs: Sequence[RunSpec], data: TaskData, layers: tuple[int, ...], hidden: int) -> tuple[float, float]:
    """Milliseconds per run and epoch of training and of scoring."""
    spent = {"train": 0.0, "evaluate": 0.0}

    def watched(name: str) -> Any:
        plain = getattr(loop._Unit, name)

        def run(*given: Any) -> Any:
            began = time.perf_counter()
            plain(*given)
            spent[name] += time.perf_counter() - began

        return mock.patch.object(loop._Unit, name, run)

    with watched("train"), watched("evaluate"):
        assert len(list(loop.train_unit(specs, data, lambda _: layers, hidden, lambda _: None))) == len(specs)
    each = 1e3 / (len(specs) * specs[0].epochs)
    return each * spent["train"], each * spent["evaluate"]


def counted(spec: RunSpec, data: TaskData, layers: int, hidden: int, runs: int, learned: Sequence[int]) -> Work:
    """The work counted from the shapes; ``learned`` has the number of rows of each minibatch."""
    model = model_of(spec, layers, hidden, {"": len(data.labels)})
    sizes = [module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear)]
    width, matrices, first = width_of_case(spec, data, layers, hidden), sum(sizes), sizes[0]
    concat = spec.fusion == "concat"
    mixing = 0 if concat else 4 * layers * hidden  # scores of the layers and their mean, forward; as much backward
    rows, judged = sum(learned), len(data.validation.rows)
    stacks, blocks = -(-runs // width), -(-judged // BLOCK_ROWS)
    states = 4 * layers * hidden
    shared = stacks / runs
    return Work(
        rows * (6 * matrices - (2 * first if concat else 0) + 2 * mixing),
        len(learned) * 40 * matrices + 2 * rows * states * shared,
        judged * (2 * matrices + mixing),
        blocks * 2 * matrices + judged * states / 2 * (shared + 3 / runs),
    )


def width_of_case(spec: RunSpec, data: TaskData, layers: int, hidden: int) -> int:
    """The number of runs in a full stack."""
    return width_of(weight_bytes(model_of(spec, layers, hidden, {"": len(data.labels)})), 0, (), None)


def measure(name: str, path: Path, counts: Sequence[int]) -> list[dict[str, Any]]:
    """One row of figures per fusion and number of runs."""
    head, shots, epochs, watched = CASES[name]
    store = open_store(path)
    task, label = choose_task(store, None, None)
    data = dataclasses.replace(load_task(store, task, label, None), test=None, tests={})
    if watched is not None:
        data = dataclasses.replace(data, validation=data.validation.subset(np.arange(watched)))
    found = []
    for fusion in FUSIONS:
        (spec,) = expand(store, head=head, fusions=(fusion,), seeds=1, shots=(shots,), epochs=(epochs,))
        layers = fusion_layers(fusion, store.layers, len(store.layers))
        lengths = np.diff(data.train.offsets)[uniform_draw(len(data.train), shots, data.classes, 0)]
        size = spec.batch_size
        learned = [int(lengths[at : at + size].sum()) for at in range(0, len(lengths), size)]
        timed([dataclasses.replace(spec, epochs=1)], data, layers, store.hidden)  # a process's first steps are slow
        concat, rows = fusion == "concat", max(learned)
        wide = len(layers) * store.hidden if concat else store.hidden
        most = width_of_case(spec, data, len(layers), store.hidden)
        for runs in counts:
            specs = [dataclasses.replace(spec, init_seed=seed) for seed in range(runs)]
            training, scoring = timed(specs, data, layers, store.hidden)
            work, stacked = counted(spec, data, len(layers), store.hidden, runs, learned), min(runs, most)
            row = {
                "case": name, "fusion": fusion, "runs": runs, "train_ms": training, "score_ms": scoring,
                "train_gflops": work.products / training / 1e6, "train_gbs": work.bytes / training / 1e6,
                "score_gflops": work.scored / scoring / 1e6, "score_gbs": work.scored_bytes / scoring / 1e6,
                "plain_train": product(stacked, rows, wide, 256, torch.float32, concat),
                "plain_score": product(stacked, BLOCK_ROWS, wide, 256, SCORED_IN, concat),
                "copy_gbs": copied(),
            }  # fmt: skip
            print(line(row), flush=True)
            found.append(row)
    return found


def line(row: dict[str, Any]) -> str:
    """A row of figures as a line of the printed table."""
    return (
        f"{row['case']:9} {row['fusion']:9} {row['runs']:3} runs   "
        f"train {row['train_ms']:7.2f} ms, {row['train_gflops']:5.1f} of {row['plain_train']:5.1f} GFLOP/s, "
        f"{row['train_gbs']:5.2f} of {row['copy_gbs']:5.2f} GB/s   "
        f"score {row['score_ms']:7.2f} ms, {row['score_gflops']:5.1f} of {row['plain_score']:5.1f} GFLOP/s, "
        f"{row['score_gbs']:5.2f} GB/s"
    )


def draw(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """Draw milliseconds per run and epoch over the number of runs, one panel per case; below, the share of the plain
    products' and the plain copy's speed that was reached.
    """
    took, reached = list[dict[str, Any]](), list[dict[str, Any]]()
    for row in rows:
        at = {name: row[name] for name in ("case", "fusion", "runs")}
        took += [{**at, "what": what, "value": row[f"{name}_ms"]} for name, what in STAGES.items()]
        shares = {
            "training, products": row["train_gflops"] / row["plain_train"],
            "training, memory": row["train_gbs"] / row["copy_gbs"],
            "scoring, products": row["score_gflops"] / row["plain_score"],
        }
        reached += [{**at, "what": what, "value": 100 * share} for what, share in shares.items()]
    above = panel_a_case(took, "ms a run and epoch", alt.Scale(type="log", nice=False))
    below = panel_a_case(reached, "% of plain products, of a plain copy", alt.Scale(domainMin=0))
    alt.vconcat(above, below).resolve_scale(strokeDash="independent").save(str(out))


def panel_a_case(values: list[dict[str, Any]], title: str, scale: alt.Scale) -> alt.HConcatChart:
    """One panel per case with lines over the number of runs: one colour per fusion, one dash per quantity."""
    cases = list(dict.fromkeys(value["case"] for value in values))
    kinds = list(dict.fromkeys(value["what"] for value in values))
    runs = sorted({value["runs"] for value in values})
    colours = [style.colour for style in styles_of(FUSIONS).values()]
    charts = []
    for case in cases:
        base = alt.Chart(pd.DataFrame(value for value in values if value["case"] == case)).encode(
            x=alt.X(
                "runs:Q",
                title="runs trained together",
                scale=alt.Scale(type="log", base=2, nice=False),
                axis=alt.Axis(values=runs),
            ),
            y=alt.Y("value:Q", title=title if case == cases[0] else None, scale=scale, axis=alt.Axis(tickCount=6)),
            color=alt.Color(
                "fusion:N",
                title=None,
                scale=alt.Scale(domain=FUSIONS, range=colours),
            ),
        )
        dash = alt.StrokeDash("what:N", title=None, sort=kinds, legend=alt.Legend(symbolSize=200))
        charts.append((base.mark_line().encode(strokeDash=dash) + base.mark_point(filled=True, opacity=1)).properties(
            title=case, width=300, height=210
        ))  # fmt: skip
    return alt.hconcat(*charts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--runs", type=int, nargs="+", default=RUNS)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--svg", type=Path, help="draw the figure into this file (docs/time-per-head.svg)")
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    if options.svg is not None and not options.svg.parent.is_dir():
        parser.error(f"--svg {options.svg}: there is no folder {options.svg.parent}")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    rows = []
    for name in options.only:
        rows += measure(name, encoded(options.data, options.work, name)[0], options.runs)
    if options.svg is not None:
        draw(rows, options.svg)
    if options.json:
        print(json.dumps({f"{row['case']} {row['fusion']} {row['runs']}": row for row in rows}))


if __name__ == "__main__":
    main()
