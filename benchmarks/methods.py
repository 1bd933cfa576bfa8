"""What does a step through the encoder cost, method by method, and how does it compare with other training loops?

    python benchmarks/methods.py [--method NAME …] [--dtype float32|bfloat16] [--length N] [--batch N]
                                 [--steps N] [--json]

The bundled MiniLM, random sub-tokens, a minibatch of 32 × 32, one thread, `last`, mean pool and a linear classifier.
fusionkit, loop and frozen take turns, so that other work on the machine disturbs all alike; Trainer runs after them, in
the same process. Milliseconds per step, the median:

    fusionkit     the step of `fit --method`: minibatch, encoder with its method, fusion, pool, head, backward, AdamW
    loop          the same model in a bare PyTorch loop: tensors ready, no fusionkit but the method itself
    Trainer       the same model by transformers' Trainer (accelerate), without saving or logging
    frozen        the step of a frozen head over the same states in memory

Speed is the loop's time over fusionkit's: 0.9 means that fusionkit takes 11 % more time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from fusionkit.dataset.split import TaskSplit
from fusionkit.encode.batching import Batching
from fusionkit.encoder import load_encoder
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.model.precision import products_in
from fusionkit.fit.vectorized.stack import stack_of
from fusionkit.methods import apply, parse_method
from fusionkit.specs import RunSpec
from fusionkit.tuning.live import LiveStates
from fusionkit.tuning.optimizer import Optimizer
from fusionkit.tuning.passes import FromText
from fusionkit.tuning.tokens import Tokens

CLASSES, EXAMPLES = 2, 128
DEFAULT = ("full", "top:3", "houlsby:64", "bitfit", "prompt:20", "prefix:20", "pals:96", "diff-prune")
hf: Any = transformers


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


def attached_encoder(method: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    encoder = load_encoder("minilm", device="cpu")
    return encoder, apply(encoder.model, parse_method(method))


def fusionkit_step(method: str, dtype: str, ids: np.ndarray[Any, Any], batch: int) -> Callable[[int], None]:
    """The step of :mod:`fusionkit.tuning.trainer`, made of the same parts."""
    encoder, attached = attached_encoder(method)
    spec = RunSpec(store="s", task="classification", label="l", fusion="last", head="linear-classifier", pool="mean",
                   method=method, encoder_lr=1e-5, compute_dtype=dtype)  # fmt: skip
    count, length = ids.shape
    offsets = np.arange(count + 1, dtype=np.int64) * length
    tokens = Tokens(ids.ravel().astype(np.int32), np.zeros(ids.size, np.uint8), offsets)
    live = LiveStates(FromText(encoder, tokens), range(encoder.layers), Batching.on("cpu"))
    targets = np.arange(count) % CLASSES
    split = TaskSplit(live, np.arange(ids.size), offsets, targets, list(map(str, targets)), list(map(str, targets)))
    model, last = build_model(spec, 1, encoder.hidden, CLASSES), (encoder.layers - 1,)
    optimizer = Optimizer(spec, list(model.parameters()), attached, 1000)

    def step(number: int) -> None:
        if attached.begin_step is not None:
            attached.begin_step(number, 1000)
        attached.train()
        model.train()
        examples = (np.arange(batch) + number * batch) % count
        with products_in(dtype, torch.device("cpu"), stacked=False):
            loss = model.loss(split.batch(examples, last))
            if attached.penalty is not None:
                loss = loss + attached.penalty()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(number)

    return step


def loop_step(method: str, dtype: str, ids: np.ndarray[Any, Any], batch: int) -> Callable[[int], None]:
    """The step of a bare PyTorch loop."""
    encoder, attached = attached_encoder(method)
    model, count = PlainModel(encoder.model), len(ids)
    attached.train()
    trained = [*attached.trainable.values(), *model.head.parameters()]
    adam = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    inputs, labels = torch.from_numpy(ids), torch.arange(count) % CLASSES
    mask = torch.ones_like(inputs)

    def step(number: int) -> None:
        if attached.begin_step is not None:
            attached.begin_step(number, 1000)
        at = (torch.arange(batch) + number * batch) % count
        with products_in(dtype, torch.device("cpu"), stacked=False):
            loss = model(inputs[at], mask[at], labels[at])["loss"]
            if attached.penalty is not None:
                loss = loss + attached.penalty()
        loss.backward()
        adam.step()
        adam.zero_grad()

    return step


def trainer_seconds(method: str, dtype: str, ids: np.ndarray[Any, Any], batch: int, steps: int) -> float:
    """Median seconds of a step of transformers' Trainer, without its setup; NaN where it cannot run the method."""
    encoder, attached = attached_encoder(method)
    if attached.begin_step is not None or attached.penalty is not None:
        return float("nan")  # the Trainer calls neither
    model = PlainModel(encoder.model)
    rows = [
        {
            "input_ids": torch.from_numpy(row),
            "attention_mask": torch.ones(len(row), dtype=torch.int64),
            "labels": k % CLASSES,
        }
        for k, row in enumerate(ids)
    ]
    ends: list[float] = []

    class Clock(hf.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *given: Any, **named: Any) -> None:
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        arguments = hf.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=batch, max_steps=steps + 1, learning_rate=1e-5,
            bf16=dtype == "bfloat16", use_cpu=True, save_strategy="no", logging_strategy="no", report_to=[],
            disable_tqdm=True, remove_unused_columns=False, dataloader_num_workers=0,
        )  # fmt: skip
        hf.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Clock()]).train()
    return statistics.median(np.diff(ends).tolist())


def frozen_step(ids: np.ndarray[Any, Any], batch: int) -> Callable[[int], None]:
    """The step of a frozen head over pooled states, as `fit` takes it."""
    from fusionkit.dataset.batch import Batch

    hidden = load_encoder("minilm", device="cpu").hidden
    spec = RunSpec(store="s", task="classification", label="l", fusion="last", head="linear-classifier", pool="mean")
    states, offsets = torch.randn(batch, 1, hidden), torch.arange(batch + 1)
    given = Batch(states, offsets, torch.arange(batch) % CLASSES, None, offsets)
    stack = stack_of([spec], [build_model(spec, 1, hidden, CLASSES)])

    def step(number: int) -> None:
        stack.step([given], [1e-3])

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", nargs="+", default=DEFAULT)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ids = np.random.default_rng(0).integers(1000, 20000, (EXAMPLES, given.length)).astype(np.int64)
    rows = []
    for method in given.method:
        ways = {"fusionkit": fusionkit_step, "loop": loop_step}
        steps = {name: way(method, given.dtype, ids, given.batch) for name, way in ways.items()}
        steps["frozen"] = frozen_step(ids, given.batch)
        took: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(given.steps + 1):
            for name, step in steps.items():
                began = time.perf_counter()
                step(number)
                took[name].append(time.perf_counter() - began)
        found = {name: 1e3 * statistics.median(each[1:]) for name, each in took.items()}
        found["Trainer"] = 1e3 * trainer_seconds(method, given.dtype, ids, given.batch, given.steps)
        rows.append({"method": method, **found, "speed": found["loop"] / found["fusionkit"]})
        if not given.json:
            print(
                f"{method:<12} fusionkit {found['fusionkit']:8.1f} ms   loop {found['loop']:8.1f}   "
                f"Trainer {found['Trainer']:8.1f}   frozen {found['frozen']:6.2f}   speed {rows[-1]['speed']:.2f}",
                flush=True,
            )
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
