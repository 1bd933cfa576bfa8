"""What does a step through the encoder cost over texts as they are, beside the loop that one would write by hand?

    python benchmarks/lengths.py STORE --label NAME [--method NAME] [--steps N] [--dtype float32|bfloat16] [--json]

STORE has rows of `tokens`, with a text's class in column NAME. Minibatches have 32 training examples whose lengths
differ, as in a run; `benchmarks/methods.py` has sequences of one length. Each contender has a process of its own with
one thread, and they take turns of ten steps, so that other work on the machine disturbs all alike:

    fusionkit      the step of `fit --method`, in a process with the settings of a worker of `fit`
    small pages    the same, without huge pages
    loop           the store's encoder, mean, one linear map and AdamW in plain PyTorch; each minibatch of sub-tokens is
                   padded to its longest text, in a process as a script has it; with --method full alone

Printed: milliseconds per step in the first and the last third of the steps, and the memory that each process holds at
the end. Claim: fusionkit takes at most the time of the loop, and its later steps take no longer than its first ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fusionkit.encoder import load_encoder
from fusionkit.errors import FusionkitError
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.model.precision import products_in
from fusionkit.fit.sweep.grid import expand
from fusionkit.machine.huge_pages import TUNABLES, with_huge_pages
from fusionkit.machine.memory import keep_freed_memory, resident
from fusionkit.specs import RunSpec
from fusionkit.store import Store, open_store
from fusionkit.tuning.tokens import TokenSource
from fusionkit.tuning.trainer import TunedRun

TURN, BATCH, RATE = 10, 32, 5e-5
CONTENDERS = ("fusionkit", "small pages", "loop")


def by_fusionkit(spec: RunSpec, context: SweepContext) -> Callable[[int], object]:
    """The step of :mod:`fusionkit.tuning.trainer`."""
    keep_freed_memory()  # as `fit` does
    return TunedRun(spec, context, context.data(spec)).step


def by_loop(spec: RunSpec, context: SweepContext, store: Store) -> Callable[[int], object]:
    """The step of a plain loop over the same training examples, in an order of its own."""
    data = context.data(spec)
    tokens, targets = TokenSource(store).of(data.train.states), torch.from_numpy(np.asarray(data.train.targets))
    sequences = tokens.sequences_of(data.train.rows[data.train.offsets[:-1]])
    encoder = load_encoder(store.manifest["encoder"]["name"], device="cpu").model.requires_grad_()
    head = torch.nn.Linear(store.hidden, len(data.labels))
    weights = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0, fused=True)
    order = np.random.default_rng(0)

    def step(number: int) -> None:
        chosen = order.choice(len(sequences), BATCH, replace=False)
        texts = [tokens.token_ids[tokens.offsets[at] : tokens.offsets[at + 1]] for at in sequences[chosen]]
        longest = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
        encoder.train()
        with products_in(spec.compute_dtype, torch.device("cpu"), stacked=False):
            states = encoder(input_ids=ids, attention_mask=mask).last_hidden_state  # [BATCH, longest, hidden]
            inside = mask.unsqueeze(-1).to(states.dtype)
            scores = head((states * inside).sum(1) / inside.sum(1))
            loss = torch.nn.functional.cross_entropy(scores.float(), targets[torch.from_numpy(chosen)])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def opened(given: argparse.Namespace) -> tuple[Store, RunSpec]:
    """The store and the run whose steps are timed; FusionkitError where the arguments lead to none."""
    store = open_store(given.store)
    (spec,) = expand(
        store, label=given.label, methods=[given.method], fusions=["last"], head="linear-classifier", pool="mean",
        batch_sizes=(BATCH,), compute_dtype=given.dtype, encoder_lrs=[RATE], from_layer="none", epochs=(100,),
    )  # fmt: skip
    return store, spec


def serve(given: argparse.Namespace) -> None:
    """Make ten steps for each line of standard input, and print the seconds that they took and the bytes held."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    store, spec = opened(given)
    context = SweepContext(store)
    step = by_loop(spec, context, store) if given.serve == "loop" else by_fusionkit(spec, context)
    print("ready", flush=True)
    for turn, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        for number in range(turn * TURN, (turn + 1) * TURN):
            step(number)
        print(json.dumps([time.perf_counter() - began, resident()]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--label", required=True)
    parser.add_argument("--method", default="full")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=CONTENDERS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps < TURN:
        parser.error(f"--steps takes {TURN} or more")
    try:
        if given.serve:
            serve(given)
            return
        opened(given)  # each contender would print the same error
    except FusionkitError as error:
        parser.error(str(error))
    names = [name for name in CONTENDERS if given.method == "full" or name != "loop"]
    plain = {name: value for name, value in os.environ.items() if name != TUNABLES}
    processes = {}
    for name in names:
        pages = with_huge_pages({}) if name == "fusionkit" else {}
        processes[name] = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--serve", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**plain, "OMP_NUM_THREADS": "1", **pages},
        )  # fmt: skip
    told: dict[str, list[list[float]]] = {name: [] for name in names}
    for name, process in processes.items():
        assert process.stdout is not None
        if not process.stdout.readline():
            sys.exit(f"{name} has failed")
    for turn in range(given.steps // TURN):
        for name in names if turn % 2 else reversed(names):
            process = processes[name]
            assert process.stdin is not None
            assert process.stdout is not None
            print(file=process.stdin, flush=True)
            told[name].append(json.loads(process.stdout.readline()))
    for process in processes.values():
        process.kill()
    third = max(given.steps // TURN // 3, 1)
    found = {}
    for name in names:
        seconds = np.array([each[0] for each in told[name]]) / TURN
        found[name] = {
            "first": 1e3 * float(seconds[:third].mean()),
            "last": 1e3 * float(seconds[-third:].mean()),
            "memory": told[name][-1][1] / 2**20,
        }
    if given.json:
        print(json.dumps(found))
        return
    made = given.steps // TURN * TURN
    print(f"{given.method}, {given.dtype}, {made} steps      first third   last third     memory   of its time")
    for name, each in found.items():
        ratio = each["last"] / found["fusionkit"]["last"]
        print(f"{name:<24} {each['first']:16.0f} ms {each['last']:10.0f} ms {each['memory']:7.0f} MB   {ratio:8.2f}")


if __name__ == "__main__":
    main()
