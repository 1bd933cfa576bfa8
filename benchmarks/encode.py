"""How much of the encoder's own speed does encoding keep?

    python benchmarks/encode.py [SOURCE] [--limit N] [--json]

The limit is a bare forward pass over the same sorted, padded batches with nothing kept: what no store can
beat. The contender is `fusionkit encode` from planned store to manifest: alignment, conversion to float16,
checksums, synced files. Both run in this process, in turn, REPEATS times; each pair gives a ratio and their
median counts, so that a machine that drifts drifts under both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fusionkit.bundled import travel_desk
from fusionkit.encode import encode
from fusionkit.encode.batches import PartReader
from fusionkit.encode.batching import Batching
from fusionkit.encode.part_records import all_parts
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.sources import Columns, Source, guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store.manifest import read_manifest

REPEATS = 3


def bare_forward(store: Path, encoder: Encoder) -> tuple[int, float]:
    """Sub-tokens and seconds of the forward passes alone, over the batches of a finished store."""
    plan = read_manifest(store)
    reader = PartReader(store, plan)
    parts = [reader.read(part) for part in all_parts(plan)]
    prepared = [batch for part in parts for batch in part.all_batches(Batching.of(plan), encoder.pad_id)]
    began = time.perf_counter()
    for batch in prepared:
        encoder.forward(*(tensor.to(encoder.device) for tensor in (batch.token_ids, batch.mask, batch.segments)))
    if encoder.device.type == "cuda":
        torch.cuda.synchronize()
    return sum(int(batch.mask.sum()) for batch in prepared), time.perf_counter() - began


def whole_encode(source: Source, columns: Columns, store: Path, encoder: Encoder) -> tuple[int, float]:
    """Sub-tokens and seconds of an encode into a new store, planning left out as it runs no forward pass."""
    began: list[float] = []

    class Watch:
        def step(self, name: str, total: int, done: int, unit: str) -> None:
            if name == "encoding":
                began.append(time.perf_counter())

        def advance(self, count: int) -> None:
            return

        def say(self, line: str) -> None:
            return

    report = encode(source, columns, store, EncodeSpec(), encoder, progress=Watch())
    return report.tokens, time.perf_counter() - began[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", nargs="?", default=str(travel_desk("en")))
    parser.add_argument("--limit", type=int, help="examples a split")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    source = open_source(options.source)
    if options.limit:
        source = Source(source.name, {k: t.slice(0, options.limit) for k, t in source.splits.items()})
    columns = guess_columns(source)
    encoder = load_encoder("minilm", device=options.device, words=columns.tokens is not None)
    contender, limit = [], []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(REPEATS + 1):  # the first warms up
            store = Path(folder) / f"{repeat}.store"
            tokens, seconds = whole_encode(source, columns, store, encoder)
            bare_tokens, bare_seconds = bare_forward(store, encoder)
            if repeat:
                contender.append(tokens / seconds)
                limit.append(bare_tokens / bare_seconds)
                print(f"encode {contender[-1]:8,.0f} sub-tokens/s   bare forward {limit[-1]:8,.0f}", flush=True)
    ratio = statistics.median(np.array(contender) / np.array(limit))
    print(f"{source.name}: encode reaches {ratio:.2f} of the bare forward pass on {encoder.device}")
    if options.json:
        print(json.dumps({"encode_over_bare_forward": round(ratio, 3)}))


if __name__ == "__main__":
    main()
