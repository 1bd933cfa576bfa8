"""How long does each method train until it is as good as the frozen attention head, with and without encoding?

    python benchmarks/to_score.py DATA WORK [--only CASE …] [--method NAME …] [--every N] [--device cpu|cuda]
                                            [--dtype float32|bfloat16] [--json]

DATA holds conll2003 and sst2; WORK takes the stores and keeps them. The goal is the validation score of a frozen
`attention` run at its best epoch, at the better of two rates. Each other method trains through the whole encoder, with
one rate that was not tuned for this. It is scored on the same validation examples every N steps until it has reached
the goal or two epochs are over. On a CPU one thread and its processor seconds, which other work on the machine affects
little; on a GPU seconds by the clock:

    encode        `fusionkit encode`, the command as it is called: once for all heads
    train         steps until the goal; of a frozen head all, with its looks, up to the end of its best epoch
    score         looks at validation on the way, of which only the last is needed; of a frozen head what came after
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fusionkit.errors import UsageError
from fusionkit.fit.executor.alone import clock_of
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.sweep.grid import expand
from fusionkit.fit.train.result import RunResult
from fusionkit.machine.devices import device_of
from fusionkit.machine.memory import keep_freed_memory
from fusionkit.metrics import is_better
from fusionkit.store import open_store
from fusionkit.tuning.trainer import TunedRun

CASES: dict[str, dict[str, Any]] = {
    "sst2": {"label": "label", "pool": "mean", "head": "linear-classifier", "validate_on": 800},
    "conll2003": {"label": "tags", "head": "linear-tagger", "validate_on": 800},
}
RATES, EPOCHS, TUNED_EPOCHS = (6e-4, 2e-3), 5, 2
# Each with a rate from the middle of its grid.
METHODS = {
    "full": 5e-5, "top:3": 1e-4, "houlsby:64": 1e-3, "lora:8": 1e-3, "bitfit": 1e-3, "prefix:20": 1e-2,
}  # fmt: skip


@dataclass(frozen=True)
class Reached:
    """How a method reached the goal; ``step`` is None where it did not."""

    method: str
    step: int | None
    best: float
    train: float
    score: float


def encode(data: Path, work: Path, name: str, device: torch.device) -> tuple[Path, float]:
    """The path of a store of rows of tokens, made where it is missing, and the seconds of its encode."""
    path, told = work / f"{name}-tokens-{device.type}.store", work / f"{name}-tokens-{device.type}.seconds"
    if not told.is_file():
        began = _command_seconds(device)
        command = [sys.executable, "-m", "fusionkit", "encode", str(data / name), "--out", str(path)]
        command += ["--rows", "tokens", "--device", str(device), "--overwrite"]  # not the rest of one
        environment = os.environ if device.type == "cuda" else {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment)
        told.write_text(str(_command_seconds(device) - began), encoding="utf-8")
    return path, float(told.read_text(encoding="utf-8"))


def _command_seconds(device: torch.device) -> float:
    """The clock for commands: seconds on a GPU, on a CPU the processor seconds of all that have ended."""
    if device.type == "cuda":
        return time.perf_counter()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def frozen(context: SweepContext, case: dict[str, Any]) -> tuple[str, Reached]:
    """The metric, and the frozen attention head at the better rate: best validation score and seconds until then."""
    found: list[tuple[str, Reached]] = []
    for spec in expand(context.store, fusions=["attention"], epochs=(EPOCHS,), lrs=RATES, **case):
        context.data(spec)
        clock = clock_of(context.device)
        began = clock()
        ((_, result),) = context.train([spec], lambda _: None)
        took = clock() - began
        assert isinstance(result, RunResult)
        part = result.epoch_seconds[result.best_epoch - 1] / result.seconds
        steps = result.best_epoch * result.steps // EPOCHS
        assert result.curve is not None
        epoch = result.curve[result.best_epoch - 1]
        watched = epoch["validation_score"]  # on the examples that the methods are scored on
        reached = Reached(f"frozen, {spec.lr:g}", steps, watched, took * part, took * (1 - part))
        found.append((result.metric, reached))
    best = found[0]
    for other in found[1:]:
        best = other if is_better(other[0], other[1].best, best[1].best) else best
    return best


def tuned(
    context: SweepContext, case: dict[str, Any], method: str, dtype: str, every: int, goal: float, name: str
) -> Reached:
    """Train one method until its validation score is at least as good as the goal."""
    (spec,) = expand(
        context.store, methods=[method], fusions=["last"], encoder_lrs=(METHODS[method],), epochs=(TUNED_EPOCHS,),
        compute_dtype=dtype, from_layer="none", **case,
    )  # fmt: skip
    run, best = TunedRun(spec, context, context.data(spec)), float("nan")
    length, took, clock = run.length, {"train": 0.0, "score": 0.0}, clock_of(context.device)

    def timed(name: str, began: float) -> None:
        took[name] += clock() - began

    for at in range(length.steps):
        began = clock()
        run.step(at)  # returns its loss, for which it has waited
        timed("train", began)
        if (at + 1) % every and at + 1 < length.steps:
            continue
        began = clock()
        metric, value, _ = run.scored(at // length.epoch + 1)
        timed("score", began)
        best = value if best != best or is_better(metric, value, best) else best
        print(f"  {name} {method}: step {at + 1} of {length.steps}, {metric} {value:.4f}", file=sys.stderr, flush=True)
        if not is_better(metric, goal, value):
            return Reached(method, at + 1, value, took["train"], took["score"])
    return Reached(method, None, best, took["train"], took["score"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--every", type=int, default=20, help="steps between two looks at validation")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        device = device_of(given.device)
    except UsageError as error:
        parser.error(f"{error}\n  no figure can be taken here; --device cpu tries the script")
    given.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = []
    for name in given.only:
        path, encoding = encode(given.data, given.work, name, device)
        context = SweepContext(open_store(path), device=device)
        metric, head = frozen(context, CASES[name])
        found = [(head, encoding)]
        for method in given.method:
            reached = tuned(context, CASES[name], method, given.dtype, given.every, head.best, name)
            found.append((reached, 0.0))
        for reached, before in found:
            rows.append({"case": name, "metric": metric, "encode": before, **vars(reached)})
            if not given.json:
                whole = before + reached.train
                at = "not reached" if reached.step is None else f"step {reached.step:5}"
                print(
                    f"{name:<10} {reached.method:<14} {metric} {reached.best:.4f} {at:>12}   encode {before:7.1f} s   "
                    f"train {reached.train:7.1f} s   both {whole:7.1f} s   score {reached.score:6.1f} s",
                    flush=True,
                )
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
