"""Cost and quality of each way of storing: bytes per row, speeds, and the change of test scores.

    python benchmarks/choices.py DATA WORK [--limit N] [--seeds 3] [--epochs 5] [--only NAME …]

DATA holds `conll2003` and `sst2`. Each choice is encoded once (a store that is in WORK already is not made again, and
its encode speed is not printed), read in minibatches of 32 examples as a fit reads them, and fitted with `attention`.
Scores are paired by seed with those of the first choice of the data set. The output is Markdown tables. Speeds mean
something on an idle machine only; scores do not depend on it. With `--limit` (examples per split) the speeds of all
choices take minutes and nothing is fitted. Without it compressed stores are left out, since they hold the same numbers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import Store, is_complete, open_store

FUSION = "attention"


@dataclass(frozen=True)
class Choice:
    """One way of storing a data set: the options of `fusionkit encode`, and how the fit pools its rows."""

    options: dict[str, Any] = field(default_factory=dict)
    pool: str | None = None

    @property
    def name(self) -> str:
        """The options as the command line writes them."""
        given = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in self.options.items())
        return (given or "the default") + (f", pool {self.pool}" if self.pool else "")


KINDS = [
    Choice(),
    Choice({"dtype": "float32"}),
    Choice({"dtype": "bfloat16"}),
    Choice({"dtype": "int8"}),
    Choice({"compress": "zstd"}),
    Choice({"dtype": "int8", "compress": "zstd"}),
    Choice({"compute_dtype": "bfloat16"}),
]
CHOICES = {
    "conll2003": [
        *KINDS,
        Choice({"rows": "words-mean"}),
        Choice({"rows": "tokens"}),
        Choice({"layers": "-4:"}),
        Choice({"layers": "3,4"}),
    ],
    "sst2": [
        *(Choice({"rows": "mean", **kind.options}) for kind in KINDS),
        Choice({"rows": "cls"}),
        Choice({"rows": "tokens"}, pool="mean"),
        Choice({"rows": "mean", "layers": "-4:"}),
    ],
}


def encoded(source: Path, choice: Choice, out: Path, limit: int | None) -> tuple[Store, float | None]:
    """The store, and the sub-tokens per second of its encode; None where the store was there already."""
    if is_complete(out):
        return open_store(out), None
    spec = EncodeSpec(**choice.options)
    opened = open_source(str(source))
    if limit is not None:
        opened = replace(opened, splits={name: examples.limited(limit) for name, examples in opened.splits.items()})
    columns = guess_columns(opened)
    encoder = load_encoder("minilm", compute_dtype=spec.compute_dtype, words=columns.tokens is not None)
    report = encode(opened, columns, out, spec, encoder)
    return open_store(out), report.tokens / report.seconds


def read_speed(store: Store) -> float:
    """Words (or sub-tokens, or texts) per second read as float32 in minibatches of train; the second of two passes."""
    train = store["train"]
    order = np.random.default_rng(0).permutation(len(train))
    for _ in range(2):
        began = time.perf_counter()
        for start in range(0, len(order), 32):
            train.take(order[start : start + 32]).hidden_states.float()
        seconds = time.perf_counter() - began
    return len(train.hidden_states) / seconds


def scores(store: Store, choice: Choice, runs: Path, seeds: int, epochs: int) -> list[float]:
    """Test scores in percent, one per seed."""
    specs = expand(store, fusions=[FUSION], pool=choice.pool, seeds=seeds, epochs=[epochs])
    return [100 * record["score"] for record in fit(store, specs, RunsFolder(runs))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--limit", type=int, help="examples a split; speeds only")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=sorted(CHOICES), default=sorted(CHOICES))
    options = parser.parse_args()
    threads = torch.get_num_threads()
    for name in options.only:
        base: list[float] | None = None
        print(f"\n| {name} | bytes a row | encode, sub-tokens/s | read, rows/s | {FUSION}, test | change |")
        print("|---|---|---|---|---|---|", flush=True)
        for choice in CHOICES[name]:
            if options.limit is None and "compress" in choice.options:
                continue
            part = "" if options.limit is None else f" {options.limit}"
            place = options.work / f"{name} {choice.name}{part}".replace(" ", "_").replace(",", "_")
            torch.set_num_threads(threads)
            store, speed = encoded(options.data / name, choice, place.with_suffix(".store"), options.limit)
            torch.set_num_threads(1)  # as `fusionkit fit` does
            reading = read_speed(store)
            found = []
            if options.limit is None:
                found = scores(store, choice, options.work / f"{name}.runs", options.seeds, options.epochs)
            base = base or found
            rows = sum(fields["rows"] for fields in store.manifest["splits"].values())
            size = sum(
                path.stat().st_size
                for array in ("hidden_states", "scales")
                for path in Path(str(store.path)).glob(f"states.zarr/*/{array}/c/**/*")
                if path.is_file()
            )
            changes = [] if found is base else [one - other for one, other in zip(found, base, strict=True)]
            print(
                f"| `{choice.name}` | {size / rows:,.0f} | {'' if speed is None else f'{speed:,.0f}'} | {reading:,.0f} "
                f"| {spread(found)} | {spread(changes, sign='+')} |",
                flush=True,
            )


def spread(values: list[float], sign: str = "") -> str:
    """Mean ± standard deviation; empty where there are no values."""
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.1f}{deviation}"


if __name__ == "__main__":
    main()
