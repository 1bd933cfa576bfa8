"""A store larger than memory: the speed of training from it, compared with rows in memory, and the peak memory.

    python benchmarks/streaming.py DATA WORK [--times 8] [--rows 250000] [--only WAY …] [--json]

CoNLL-2003's training sentences, repeated --times times, are encoded by MiniLM as words into WORK (9.3 GB for 8), which
keeps the store. Four heads (linear and attention under a tagger, two rates) train on the first --rows rows of an epoch.
Each way is a process of its own, limited to 2 GB of writable memory (RLIMIT_DATA) where it streams:

    memory    as many sentences as have that many rows, held as float32, as `fit` holds a split that fits
    memory16  all rows in memory in the store's float16, converted minibatch by minibatch
    mapped    all rows, gathered at random from maps of the store: what `--order shuffle` does
    warm      all rows, streamed, their files in the page cache as far as they fit
    cold      all rows, streamed, after the page cache was told to drop them

Rows per second are measured from the request for the epoch's first minibatch to the end of the last step. `fit` is the
command itself in one process: a whole epoch with validation and test, under the same limit. Peaks are ru_maxrss, which
includes pages of mapped files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit import expand
from fusionkit.fit.loader.minibatches import GatherLoader, SeedLoader, layers_of_batch, load_into_memory
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.fit.loader.streaming import StreamingLoader
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.sweep.grid import read_layers
from fusionkit.fit.train.loop import denormals_as_zero
from fusionkit.fit.vectorized.stack import stack_of
from fusionkit.specs import SHUFFLE, WINDOW, RunSpec
from fusionkit.store import HiddenStates, Store, open_store
from fusionkit.store.layer_positions import positions_of
from fusionkit.store.layout import chunk_path

LIMIT = 2 * 10**9
SWEEP = {"fusions": ("linear", "attention"), "lrs": (5e-4, 2e-3), "epochs": (1,), "order": WINDOW}
BASES = ("memory", "memory16")
STREAMS = ("warm", "cold", "fit")
WAYS = (*BASES, "mapped", *STREAMS)


def made_store(data: Path, work: Path, times: int) -> Path:
    """The path of the store, which is encoded if it is missing; a repeated sentence is encoded once."""
    source, store = work / f"conll{times}", work / f"conll{times}.store"
    if not (store / "manifest.json").is_file():
        source.mkdir(parents=True, exist_ok=True)
        for split in ("train", "validation", "test"):
            text = (data / "conll2003" / f"{split}.txt").read_text(encoding="utf-8").rstrip("\n") + "\n\n"
            with (source / f"{split}.txt").open("w", encoding="utf-8") as file:
                for _ in range(times if split == "train" else 1):
                    file.write(text)
        command = [sys.executable, "-m", "fusionkit", "encode", str(source), "--out", str(store), "--rows", "words"]
        subprocess.run(command, check=True)
    return store


def drop_from_page_cache(store: Store) -> None:
    """Ask the kernel to drop the training chunks from the page cache."""
    os.sync()
    for chunk in range(len(store.manifest["splits"]["train"]["chunks"]["hidden_states"])):
        with Path(str(chunk_path(store.path, "train", chunk))).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fed(way: str, train: TaskSplit, rows: int, size: int) -> SeedLoader:
    """The loader of one way's minibatches."""
    layers = tuple(range(train.states.shape[1]))
    if way in STREAMS:
        return StreamingLoader(train, layers, Sampler(train, WINDOW, 0), size)
    if way == "memory":
        several = min(int(np.searchsorted(train.offsets[1:], rows)) + 1, len(train))
        train = load_into_memory(train.subset(np.arange(several)), layers)
    elif way == "memory16":
        assert isinstance(train.states, HiddenStates)
        train = train.over(train.states.load(np.unique(train.rows), layers), train.rows)
    return GatherLoader(train, layers, Sampler(train, SHUFFLE, 0), size)


def rows_a_second(way: str, store: Store, data: TaskData, specs: list[RunSpec], rows: int) -> float:
    """Rows per second of one way: all runs train together on the first ``rows`` rows of an epoch."""
    feeder, rows = fed(way, data.train, rows, specs[0].batch_size), min(rows, len(data.train.rows))
    stacks, done = [], 0
    for fusion in dict.fromkeys(spec.fusion for spec in specs):
        alike = [spec for spec in specs if spec.fusion == fusion]
        places = positions_of(read_layers(store, alike[0]), store.layers)
        models = [model_of(spec, len(places), store.hidden, {"": len(data.labels)}) for spec in alike]
        stacks.append((stack_of(alike, models), places))
    if way == "cold":
        drop_from_page_cache(store)
    began = time.perf_counter()
    with denormals_as_zero():
        for batch in feeder.epoch(1):
            for stack, places in stacks:
                stack.step([layers_of_batch(batch, places)], [spec.lr for spec in stack.specs])
            done += len(batch.states)
            if done >= rows:
                break
    return done / (time.perf_counter() - began)


def child(way: str, path: Path, rows: int) -> None:
    """Measure one way in this process and print its rows per second."""
    torch.set_num_threads(1)
    store = open_store(path)
    task, label = choose_task(store, None, None)
    print(rows_a_second(way, store, load_task(store, task, label, None), expand(store, **SWEEP), rows))  # type: ignore[arg-type]


def measured(way: str, path: Path, rows: int) -> tuple[float, float]:
    """Rows per second (0 for `fit`) and the peak in GB of one way, from a process of its own."""
    command = [sys.executable, __file__, str(path), str(path), "--child", way, "--rows", str(rows)]
    with tempfile.TemporaryDirectory() as folder:
        if way == "fit":
            chosen = [f"--fusion={name}" for name in ("linear", "attention")] + [
                "--lr=5e-4",
                "--lr=2e-3",
                "--epochs=1",
                "--workers=1",
            ]
            command = [
                sys.executable,
                "-m",
                "fusionkit",
                "fit",
                str(path),
                *chosen,
                "--out",
                str(Path(folder) / "runs"),
            ]

        def limit() -> None:
            if way in STREAMS:
                resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))

        # Arrow's own allocator reserves a gigabyte of addresses that it never writes to: RLIMIT_DATA counts them.
        env = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limit, env=env)
        assert process.stdout is not None
        told = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{way} failed with exit {os.waitstatus_to_exitcode(status)}")
    return 0.0 if way == "fit" else float(told.split()[-1]), usage.ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--times", type=int, default=8, help="how often the training sentences are repeated")
    parser.add_argument("--rows", type=int, default=250_000, help="rows that each way is timed over")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.work, options.rows)
        return
    path = made_store(options.data, options.work, options.times)
    speeds, told = {}, {}
    for way in options.only:
        speeds[way], peak = measured(way, path, options.rows)
        told[f"{way} peak GB"] = round(peak, 2)
        against = ", ".join(f"{speeds[way] / speeds[base]:.2f} of {base}" for base in BASES if base in speeds)
        shown = "the whole command" if way == "fit" else f"{speeds[way]:,.0f} rows a second, {against or 'alone'}"
        print(f"{way:9} {shown}, peak {peak:.2f} GB", flush=True)
    for base in [base for base in BASES if base in speeds]:
        told |= {
            f"{way} over {base}": round(speeds[way] / speeds[base], 3) for way in ("warm", "cold") if way in speeds
        }
    if options.json:
        print(json.dumps(told))


if __name__ == "__main__":
    main()
