"""What does a step through the encoder cost, method by method, and how does it compare with other training loops?

    python benchmarks/methods.py [--method NAME …] [--device cpu|cuda] [--dtype float32|bfloat16] [--length N]
                                 [--batch N] [--steps N] [--json]

The bundled MiniLM, random sub-tokens, a minibatch of 32 × 32, `last`, mean pool and a linear classifier; on a CPU one
thread. fusionkit, loop and frozen take turns, in one order and then the other, so that other work on the machine and
what the one before left in the caches disturb all alike; Trainer runs after them, in the same process. Milliseconds per
step, the median:

    fusionkit     the step of `fit --method`: minibatch, encoder with its method, fusion, pool, head, backward, AdamW
    loop          the same model in a bare PyTorch loop: tensors ready, no fusionkit but the method itself
    Trainer       the same model by transformers' Trainer (accelerate), without saving or logging
    frozen        the step of a frozen head over the same states in memory

Speed is the loop's time over fusionkit's: 0.9 means that fusionkit takes 11 % more time. On a CPU without bfloat16
instructions `--dtype bfloat16` has oneDNN's substitute in the loop and in the Trainer, and float32 products in
fusionkit: compare it with `--dtype float32`.

Memory is counted in megabytes (2^20 bytes), as `fit` records it: the weights, two moments of those that train, and the
most bytes of all other tensors that a step holds at a time, gradients among them. Tensors that were there before the
step are not counted: the loop's inputs, the states that the frozen head reads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.split import TaskSplit
from fusionkit.encoder import load_encoder
from fusionkit.errors import UsageError
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.model.precision import products_in
from fusionkit.fit.train.meter import Meter
from fusionkit.fit.vectorized.looped import LoopedRuns
from fusionkit.fit.vectorized.stack import stack_of
from fusionkit.machine.bfloat16 import in_float32
from fusionkit.machine.devices import device_of
from fusionkit.machine.memory import keep_freed_memory
from fusionkit.methods import apply, parse_method
from fusionkit.specs import RunSpec
from fusionkit.tuning.live import LiveStates
from fusionkit.tuning.optimizer import Optimizer
from fusionkit.tuning.passes import FromText
from fusionkit.tuning.tokens import Tokens

CLASSES, EXAMPLES = 2, 128
DEFAULT = (
    "full", "top:3", "bitfit", "houlsby:64", "lora:8", "ia3", "prompt:20", "prefix:20", "pals:96", "low-rank:83",
    "diff-prune",
)  # fmt: skip
MB = 2**20
hf: Any = transformers


@dataclass(frozen=True)
class Contender:
    """A way to train: its step, all of its weights, and those that train."""

    step: Callable[[int], None]
    weights: Iterable[torch.Tensor]
    trained: Iterable[torch.Tensor]

    def memory(self) -> float:
        """Counted megabytes of a step that is not the first: the optimizer makes its moments in that one."""
        with Meter() as meter:
            self.step(1)
        kept = sum({id(each): each.nbytes for each in self.weights}.values())
        moments = 2 * sum(each.nbytes for each in self.trained)
        return float(kept + moments + meter.peak_bytes) / MB


class PlainModel(nn.Module):
    """Encoder, mean over the sub-tokens, one linear map and cross-entropy in plain PyTorch."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.config.hidden_size, CLASSES)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state  # [n, length, d]
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        scores = self.head((states * mask).sum(1) / mask.sum(1))  # [n, classes]
        return {"loss": nn.functional.cross_entropy(scores.float(), labels), "logits": scores}


@dataclass(frozen=True)
class Setup:
    """What all contenders share: the sub-tokens ``[examples, length]`` of the text, and how they are trained on."""

    device: torch.device
    dtype: str
    ids: np.ndarray[Any, Any]
    batch: int

    def encoder(self, method: str) -> tuple[Any, Any]:
        """A fresh encoder, and the method on it."""
        torch.manual_seed(0)
        encoder = load_encoder("minilm", device=str(self.device))
        attached = apply(encoder.model, parse_method(method))
        encoder.model.to(self.device)
        return encoder, attached

    def wait(self) -> None:
        """Wait until the device has done all work that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def by_fusionkit(method: str, setup: Setup) -> Contender:
    """The step of :mod:`fusionkit.tuning.trainer`, made of the same parts."""
    encoder, attached = setup.encoder(method)
    dtype, ids, batch = setup.dtype, setup.ids, setup.batch
    spec = RunSpec(store="s", task="classification", label="l", fusion="last", head="linear-classifier", pool="mean",
                   method=method, encoder_lr=1e-5, compute_dtype=dtype)  # fmt: skip
    count, length = ids.shape
    offsets = np.arange(count + 1, dtype=np.int64) * length
    tokens = Tokens(ids.ravel().astype(np.int32), np.zeros(ids.size, np.uint8), offsets)
    live = LiveStates(FromText(encoder, tokens), range(encoder.layers))
    targets = np.arange(count) % CLASSES
    split = TaskSplit(live, np.arange(ids.size), offsets, targets, list(map(str, targets)), list(map(str, targets)))
    model, last = build_model(spec, 1, encoder.hidden, CLASSES).to(setup.device), (encoder.layers - 1,)
    optimizer = Optimizer(spec, list(model.parameters()), attached, 1000)

    def step(number: int) -> None:
        if attached.begin_step is not None:
            attached.begin_step(number, 1000)
        attached.train()
        model.train()
        examples = (np.arange(batch) + number * batch) % count
        with in_float32(dtype, setup.device):
            with products_in(dtype, setup.device, stacked=False):
                loss = model.loss(split.batch(examples, last).on(setup.device))
                if attached.penalty is not None:
                    loss = loss + attached.penalty()
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(number)
        float(loss.detach())  # as the trainer, which stops where a loss is not finite

    every = [*attached.model.parameters(), *attached.trainable.values(), *model.parameters()]
    return Contender(step, every, optimizer.weights)


def by_loop(method: str, setup: Setup) -> Contender:
    """The step of a bare PyTorch loop."""
    encoder, attached = setup.encoder(method)
    ids, batch, device = setup.ids, setup.batch, setup.device
    model, count = PlainModel(encoder.model).to(device), len(ids)
    trained = [*attached.trainable.values(), *model.head.parameters()]
    adam = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    inputs, labels = torch.from_numpy(ids).to(device), torch.arange(count, device=device) % CLASSES
    mask = torch.ones_like(inputs)

    def step(number: int) -> None:
        if attached.begin_step is not None:
            attached.begin_step(number, 1000)
        attached.train()
        at = (torch.arange(batch, device=device) + number * batch) % count
        with products_in(setup.dtype, device, stacked=False):
            loss = model(inputs[at], mask[at], labels[at])["loss"]
            if attached.penalty is not None:
                loss = loss + attached.penalty()
        loss.backward()
        adam.step()
        adam.zero_grad()

    return Contender(step, [*model.parameters(), *attached.trainable.values()], trained)


def by_frozen(setup: Setup, stacked: bool = True) -> Contender:
    """The step of a frozen head over pooled states, as `fit` takes it; not ``stacked`` as it counts its memory."""
    hidden, batch, device = load_encoder("minilm", device="cpu").hidden, setup.batch, setup.device
    spec = RunSpec(store="s", task="classification", label="l", fusion="last", head="linear-classifier", pool="mean")
    states, offsets = torch.randn(batch, 1, hidden, device=device), torch.arange(batch + 1, device=device)
    given = Batch(states, offsets, torch.arange(batch, device=device) % CLASSES, None, offsets)
    model = build_model(spec, 1, hidden, CLASSES).to(device)
    runs = stack_of([spec], [model]) if stacked else LoopedRuns([spec], [model])

    def step(number: int) -> None:
        runs.step([given], [1e-3])

    return Contender(step, list(model.parameters()), list(model.parameters()))


def trainer_seconds(method: str, setup: Setup, steps: int) -> float:
    """Median seconds of a step of transformers' Trainer, without its setup; NaN where it cannot run the method."""
    encoder, attached = setup.encoder(method)
    if attached.begin_step is not None or attached.penalty is not None:
        return float("nan")  # the Trainer calls neither
    model = PlainModel(encoder.model)
    rows = [
        {
            "input_ids": torch.from_numpy(row),
            "attention_mask": torch.ones(len(row), dtype=torch.int64),
            "labels": k % CLASSES,
        }
        for k, row in enumerate(setup.ids)
    ]
    ends: list[float] = []

    class Clock(hf.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *given: Any, **named: Any) -> None:
            setup.wait()
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        arguments = hf.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=setup.batch, max_steps=steps + 1, learning_rate=1e-5,
            bf16=setup.dtype == "bfloat16", use_cpu=setup.device.type == "cpu", save_strategy="no",
            logging_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False,
            dataloader_num_workers=0, max_grad_norm=0,  # the others clip nothing
        )  # fmt: skip
        hf.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Clock()]).train()
    return statistics.median(np.diff(ends).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", nargs="+", default=DEFAULT)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        device = device_of(given.device)
    except UsageError as error:
        parser.error(f"{error}\n  no figure can be taken here; --device cpu tries the script")
    torch.set_num_threads(1)
    keep_freed_memory()  # as `fit` does
    ids = np.random.default_rng(0).integers(1000, 20000, (EXAMPLES, given.length)).astype(np.int64)
    setup = Setup(device, given.dtype, ids, given.batch)
    rows = []
    for method in given.method:
        contenders = {"fusionkit": by_fusionkit(method, setup), "loop": by_loop(method, setup)}
        contenders["frozen"] = by_frozen(setup)
        took: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(given.steps + 1):
            for name, each in list(contenders.items())[:: 1 if number % 2 else -1]:
                setup.wait()
                began = time.perf_counter()
                each.step(number)
                setup.wait()
                took[name].append(time.perf_counter() - began)
        found = {name: 1e3 * statistics.median(each[1:]) for name, each in took.items()}
        contenders["frozen"] = by_frozen(setup, stacked=False)
        contenders["frozen"].step(0)
        memory = {f"{name} MB": each.memory() for name, each in contenders.items()}
        found["Trainer"] = 1e3 * trainer_seconds(method, setup, given.steps)
        rows.append({"method": method, **found, "speed": found["loop"] / found["fusionkit"], **memory})
        if not given.json:
            print(
                f"{method:<12} fusionkit {found['fusionkit']:8.1f} ms   loop {found['loop']:8.1f}   "
                f"Trainer {found['Trainer']:8.1f}   frozen {found['frozen']:6.2f}   speed {rows[-1]['speed']:.2f}   "
                f"MB: {memory['fusionkit MB']:,.0f}, loop {memory['loop MB']:,.0f}, frozen {memory['frozen MB']:.1f}",
                flush=True,
            )
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
