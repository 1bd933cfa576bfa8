"""What does each way of storing cost in bytes and time?

    python benchmarks/choices.py DATA WORK [--limit 600] [--only NAME …]

DATA holds `conll2003` and `sst2`. Each choice is encoded once, the first `--limit` examples of each split (a store that
is in WORK already is not made again, and its encode speed is not printed), and read in minibatches of 32 examples as a
fit reads them. The output is Markdown tables. Speeds mean something on an idle machine only. The scores of these ways
are those of pipelines/minilm/storage.yaml.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import Store, is_complete, open_store


@dataclass(frozen=True)
class Choice:
    """One way of storing a data set: the options of `fusionkit encode`."""

    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The options as the command line writes them."""
        return " ".join(f"--{key.replace('_', '-')} {value}" for key, value in self.options.items()) or "the default"


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
        Choice({"rows": "tokens"}),
        Choice({"rows": "mean", "layers": "-4:"}),
    ],
}


def encoded(source: Path, choice: Choice, out: Path, limit: int) -> tuple[Store, float | None]:
    """The store, and the sub-tokens per second of its encode; None where the store was there already."""
    if is_complete(out):
        return open_store(out), None
    spec = EncodeSpec(**choice.options)
    opened = open_source(str(source))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--limit", type=int, default=600, help="examples a split")
    parser.add_argument("--only", nargs="+", choices=sorted(CHOICES), default=sorted(CHOICES))
    options = parser.parse_args()
    threads = torch.get_num_threads()
    for name in options.only:
        print(f"\n| {name} | bytes a row | encode, sub-tokens/s | read, rows/s |\n|---|---|---|---|", flush=True)
        for choice in CHOICES[name]:
            place = options.work / f"{name} {choice.name} {options.limit}".replace(" ", "_").replace(",", "_")
            torch.set_num_threads(threads)
            store, speed = encoded(options.data / name, choice, place.with_suffix(".store"), options.limit)
            torch.set_num_threads(1)  # as `fusionkit fit` does
            reading = read_speed(store)
            rows = sum(fields["rows"] for fields in store.manifest["splits"].values())
            size = sum(
                path.stat().st_size
                for array in ("hidden_states", "scales")
                for path in Path(str(store.path)).glob(f"states.zarr/*/{array}/c/**/*")
                if path.is_file()
            )
            encoding = "" if speed is None else f"{speed:,.0f}"
            print(f"| `{choice.name}` | {size / rows:,.0f} | {encoding} | {reading:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
