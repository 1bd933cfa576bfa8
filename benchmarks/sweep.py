"""Heads per minute: sweeps over a store, against training one head after another and against encoding each minibatch.

    python benchmarks/sweep.py DATA WORK [--only NAME …] [--seeds N] [--precisions float32 bfloat16]
                               [--plain float32] [--json]

DATA holds conll2003 and sst2; WORK takes the stores and keeps them. Three sweeps over MiniLM's states:

    few-shot-classification   SST-2, rows of mean, 32 examples: 4 fusions × 8 seeds × 3 rates = 96 runs, 50 epochs
    few-shot-tagging          CoNLL-2003, words, 512 sentences: 4 fusions × 5 seeds × 3 rates = 60 runs, 10 epochs
    full                      CoNLL-2003, words, every sentence: 4 fusions × 1 seed × 2 rates = 8 runs, 2 epochs

Contender: what `fusionkit fit` does between open store and written records, with one worker per core and including the
workers' start; once with products in float32 and once in bfloat16 (`--compute-dtype bfloat16`).
(a) A plain PyTorch loop trains one head after another over features in memory as float32, with fused AdamW and all
cores. It scores validation after every epoch, on class numbers and with the contender's counting of spans, and test
once. It runs in float32, and once more with what PyTorch needs for bfloat16, an autocast around training and scoring.
(b) A system without a store: (a), and a forward pass of the encoder before each minibatch and each scoring,
extrapolated from a few timed minibatches. Against (b) the contender's time includes the one encode. All are timed in
one run of this script, in turn.
Printed with each case: the speed of plain products in one process, and in each of two at once. Where two processes
halve each other's speed, the machine has only one core free at that moment, whatever it reports, and two workers are no
faster than one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from fusionkit.dataset.draws import epoch_order, uniform_draw
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.encoder import load_encoder
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.train.f1 import Spans
from fusionkit.fusions import build_fusion, fusion_layers
from fusionkit.heads import build_head
from fusionkit.machine.resources import cores
from fusionkit.specs import TRAINING_DTYPES
from fusionkit.store import Store, open_store
from fusionkit.store.layout import read_small

Layers = tuple[int, ...]
FUSIONS = ("last", "linear", "attention", "concat")


@dataclass(frozen=True)
class Case:
    """One sweep: the options of `fusionkit fit` and of the plain loop, and the claimed speed over (a)."""

    store: str
    head: str
    shots: int | None
    epochs: int
    seeds: int
    rates: tuple[float, ...]
    batch_size: int = 16
    claim: float = 1.0


CASES = {
    "few-shot-classification": Case("sst2", "classifier", 16, 50, 8, (5e-4, 1e-3, 2e-3), claim=3.0),
    "few-shot-tagging": Case("conll2003", "tagger", 128, 10, 5, (5e-4, 1e-3, 2e-3), claim=2.0),
    "full": Case("conll2003", "tagger", None, 2, 1, (1e-3, 2e-3), batch_size=32, claim=1.5),
}
ENCODE = {"sst2": ["--rows", "mean"], "conll2003": ["--rows", "words"]}


class Features:
    """A split in memory for the plain loop: states, float32 ``[rows, layers, hidden]``, and class numbers."""

    def __init__(self, split: TaskSplit, data: TaskData, device: str = "cpu") -> None:
        self.states = split.states.gather(split.rows).float().contiguous().to(device)
        classes = split.targets.astype(np.int64)
        self.targets, self.offsets, self.count = torch.from_numpy(classes).to(device), split.offsets, len(split)
        self.spans = None if split.kept is None else Spans(data.labels, split.offsets, classes, torch.device(device))

    def batch(self, examples: NDArray[np.int64], layers: Layers) -> tuple[Tensor, Tensor]:
        """States of the layers and targets of some examples."""
        rows = np.concatenate([np.arange(self.offsets[i], self.offsets[i + 1]) for i in examples])
        at = torch.from_numpy(rows).to(self.states.device)
        return self.states[at, layers[0] : layers[-1] + 1], self.targets[at]

    def score(self, model: nn.Module, layers: Layers) -> float:
        """F1 of spans, or accuracy."""
        with torch.no_grad():
            chosen = self.states[:, layers[0] : layers[-1] + 1]
            found = torch.cat([model(chosen[at : at + 2048]).argmax(1) for at in range(0, len(chosen), 2048)])
        if self.spans is not None:
            return float(self.spans.f1(found))
        return float((found == self.targets).float().mean())


class Plain(nn.Module):
    """Fusion and head as one plain module."""

    def __init__(self, fusion: str, head: str, layers: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.fusion = build_fusion(fusion, layers, hidden)
        self.head = build_head(head, self.fusion.width, classes, 0.0)

    def forward(self, states: Tensor) -> Tensor:
        offsets = torch.arange(len(states) + 1, device=states.device)
        return self.head(self.fusion(states, offsets), offsets)  # type: ignore[no-any-return]


def plain_loop(case: Case, store: Store, data: TaskData, precision: str, device: str = "cpu") -> Iterator[float]:
    """(a): train one head after another; yields 0 when features are in memory, then each head's test score at its best
    epoch by validation.
    """
    narrow = torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bfloat16")
    assert data.test is not None
    train, validation, test = (Features(split, data, device) for split in (data.train, data.validation, data.test))
    yield 0.0  # features are in memory
    for fusion in FUSIONS:
        layers = fusion_layers(fusion, store.layers, len(store.layers))
        for seed in range(case.seeds):
            draw = np.arange(train.count)
            if case.shots is not None:
                draw = uniform_draw(train.count, case.shots, data.classes, seed)
            for rate in case.rates:
                torch.manual_seed(seed)
                model = Plain(fusion, case.head, len(layers), store.hidden, len(data.labels)).to(device)
                optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, fused=True)
                schedule = LambdaLR(optimizer, falling(case.epochs * -(-len(draw) // case.batch_size)))
                best, kept = -1.0, dict[str, Tensor]()
                for epoch in range(1, case.epochs + 1):
                    order = draw[epoch_order(len(draw), seed, epoch)]
                    for at in range(0, len(order), case.batch_size):
                        states, targets = train.batch(order[at : at + case.batch_size], layers)
                        optimizer.zero_grad()
                        with narrow:
                            loss = nn.functional.cross_entropy(model(states), targets)
                        loss.backward()  # type: ignore[no-untyped-call]
                        optimizer.step()
                        schedule.step()
                    with narrow:
                        value = validation.score(model, layers)
                    if value > best:
                        best, kept = value, {name: w.clone() for name, w in model.state_dict().items()}
                model.load_state_dict(kept)
                with narrow:
                    found = test.score(model, layers)
                yield found


def falling(steps: int) -> Any:
    """The learning rate's factor by step: linear from 1 to 0 over ``steps`` steps."""
    return lambda step: 1 - step / steps


def encoding_seconds(case: Case, store: Store, data: TaskData) -> float:
    """(b): seconds of the forward passes that one run needs without a store, extrapolated from a few passes."""
    encoder = load_encoder("minilm", device="cpu", words=True)
    random = np.random.default_rng(0)

    def forward(split: str, batch: int, times: int) -> float:
        """Seconds per example."""
        ids, offsets = (read_small(store.path, split, name) for name in ("token_ids", "token_offsets"))
        began = 0.0
        for k in range(times + 1):
            if k == 1:  # the first warms up
                began = time.perf_counter()
            chosen = random.choice(len(offsets) - 1, batch, replace=False)
            rows = [torch.from_numpy(ids[offsets[i] : offsets[i + 1]]).long() for i in chosen]
            padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=encoder.pad_id)
            mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            encoder.forward(padded, mask, torch.zeros_like(padded))
        return (time.perf_counter() - began) / (times * batch)

    examples = len(data.train) if case.shots is None else case.shots * data.classes
    training = case.epochs * examples * forward("train", case.batch_size, 10)
    scoring = case.epochs * len(data.validation) * forward("validation", 64, 5)
    return training + scoring + len(data.test or ()) * forward("test", 64, 5)


PROBE = """
import time, torch
torch.set_num_threads(1)
x, y, times = torch.randn(512, 512), torch.randn(512, 512), 0
began = time.perf_counter()
while (took := time.perf_counter() - began) < 2:
    x @ y
    times += 1
print(2e-9 * 512**3 * times / took)
"""


def products_each(processes: int) -> float:
    """Mean GFLOP/s per process of plain products in float32, in ``processes`` processes at once."""
    command = [sys.executable, "-c", PROBE]
    begun = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return sum(float(process.communicate()[0]) for process in begun) / processes


def contender(case: Case, store: Store, folder: Path, precision: str, device: str = "cpu") -> tuple[float, list[float]]:
    """Seconds of the whole sweep, and the test scores."""
    specs = expand(
        store,
        head=case.head,
        fusions=FUSIONS,
        seeds=case.seeds,
        lrs=case.rates,
        shots=(case.shots,),
        epochs=(case.epochs,),
        batch_sizes=(case.batch_size,),
        compute_dtype=precision,
    )
    began = time.perf_counter()
    records = fit(store, specs, RunsFolder(folder), workers=None, device=device)
    return time.perf_counter() - began, [record["score"] for record in records]


def encoded(data: Path, work: Path, name: str, *choices: str) -> tuple[Path, float]:
    """The path of the store, which is made where it is missing, and the seconds that its encode took; ``choices``:
    options of its command, in place of the usual ones.
    """
    stem = "-".join([name, *(word for word in choices if not word.startswith("-"))])
    path, told = work / f"{stem}.store", work / f"{stem}.seconds"
    if not told.is_file():
        began = time.perf_counter()
        command = [sys.executable, "-m", "fusionkit", "encode", str(data / name), "--out", str(path)]
        command += [*(choices or ENCODE[name]), "--overwrite"]  # not the rest of an encode that was interrupted
        subprocess.run(command, check=True)
        told.write_text(str(time.perf_counter() - began), encoding="utf-8")
    return path, float(told.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, help="fewer seeds than the claim has")
    parser.add_argument("--precisions", nargs="+", choices=TRAINING_DTYPES, default=list(TRAINING_DTYPES))
    parser.add_argument("--plain", nargs="+", choices=TRAINING_DTYPES, help="precisions of (a), where it has others")
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    ratios: dict[str, float] = {}
    for name in options.only:
        case = CASES[name] if options.seeds is None else replace(CASES[name], seeds=options.seeds)
        path, once = encoded(options.data, options.work, case.store)
        store = open_store(path)
        task, label = choose_task(store, None, None)
        data = load_task(store, task, label, None)
        print(f"plain products: {products_each(1):.0f} GFLOP/s in one process, {products_each(2):.0f} in each of two")
        torch.set_num_threads(cores())
        alone, plain = dict[str, float](), dict[str, list[float]]()
        for precision in options.plain or options.precisions:
            loop = plain_loop(case, store, data, precision)
            next(loop)
            began = time.perf_counter()
            plain[precision] = list(loop)
            alone[precision] = time.perf_counter() - began
        forwards = encoding_seconds(case, store, data)
        torch.set_num_threads(1)
        for precision in options.precisions:
            with tempfile.TemporaryDirectory() as folder:
                seconds, found = contender(case, store, Path(folder) / "runs", precision)
            each = 60 * len(found)
            print(
                f"{name}, {precision}: {len(found)} runs in {seconds:.1f} s, {each / seconds:,.0f} heads a minute, "
                f"mean test score {np.mean(found):.4f}",
                flush=True,
            )
            for other, took in alone.items():
                ratios[f"{name} in {precision} over (a) in {other}"] = round(took / seconds, 2)
                print(
                    f"    {took / seconds:.2f} × (a) in {other} (claim {case.claim:g}): {took:.1f} s, "
                    f"{each / took:,.0f} heads a minute, {np.mean(plain[other]):.4f}",
                    flush=True,
                )
            again = next(iter(alone.values())) + len(found) * forwards
            ratios[f"{name} in {precision} over (b)"] = round(again / (seconds + once), 1)
            print(
                f"    {again / (seconds + once):,.0f} × (b) (claim 100): {again:,.0f} s, one encode is {once:.0f} s",
                flush=True,
            )
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
