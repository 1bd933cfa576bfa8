"""The time of an encode over a cluster: the model of docs/scaling.md compared with measured runs.

    python benchmarks/scaling.py SENTENCES.txt      a CoNLL file of 2,400 sentences or more

    seconds = n/p + ⌈P/W⌉ · (t/r + t·β/d + o)
    n sub-tokens in P parts of t, planned at p per second; W workers; a worker computes r sub-tokens per second and
    writes d bytes per second, β per sub-token; o: all other seconds per part

p, r and o are taken from the smallest run by one worker (the median of three), d from chunks that are written alone.
The times of the other runs are predicted from them. Limit: every encode by one worker takes within 25 % of its
predicted time, without planning. Two workers share caches, memory and disk; the runs with two show how far they fall
behind. "at work" has the seconds inside parts, summed over workers, per second of the encode.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from fusionkit.cluster import Cluster, ClusterSettings, open_cluster
from fusionkit.cluster.part_map import cluster_parts
from fusionkit.cluster.task_map import each_done
from fusionkit.encode import encode
from fusionkit.encode.job import NoProgress
from fusionkit.encode.part_records import all_parts, finished_parts
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import layout
from fusionkit.store.chunks import write_chunk
from fusionkit.store.manifest import split_layout

SENTENCES, TIMES, WORKERS, REPEATS = 150, (1, 4, 16), (1, 2), 3
ROWS_A_PART, LAYERS, HIDDEN, LIMIT = 500, 7, 384, 0.25
BYTES_A_ROW = LAYERS * HIDDEN * 2


class Watch(NoProgress):
    """Notes when planning ended and the first part was requested."""

    planned = 0.0

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        if name == "encoding":
            self.planned = time.perf_counter()


def cut(sentences: list[str], count: int, folder: Path) -> Path:
    """A source of the first ``count`` sentences."""
    path = folder / f"{count}.txt"
    path.write_text("\n\n".join(sentences[:count]) + "\n", encoding="utf-8")
    return path


def measured(cluster: Cluster, settings: ClusterSettings, encoder: Encoder, path: Path, out: Path) -> dict[str, float]:
    """Figures of one run by warm workers: sub-tokens, parts, bytes per chunk, seconds in parts, of plan and encode."""
    watch, opened = Watch(), open_source(str(path))
    began = time.perf_counter()
    manifest = encode(
        opened, guess_columns(opened), out, EncodeSpec(rows="tokens"), encoder,
        run_parts=cluster_parts(cluster, encoder, settings), progress=watch, device="cpu",
    ).manifest  # fmt: skip
    ended = time.perf_counter()
    records = finished_parts(out, manifest).values()
    split = next(iter(manifest["splits"]))
    return {
        "tokens": sum(record.tokens for record in records),
        "parts": len(all_parts(manifest)),
        "bytes": split_layout(manifest, split).chunk_bytes,
        "in parts": sum(record.seconds for record in records),
        "plan": watch.planned - began,
        "encode": ended - watch.planned,
    }


def all_runs(sentences: list[str], folder: Path) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Number of workers, multiple of the data, median of each figure over runs; first the smallest by one worker."""
    encoder = load_encoder("minilm", device="cpu")
    for workers in WORKERS:
        settings = ClusterSettings(workers=workers, threads=1, gpus=0)
        with open_cluster(settings) as cluster:
            while cluster.count.up < workers:
                cluster.heal()
            list(each_done(cluster, warm, range(8 * workers), on_aside=print))
            measured(cluster, settings, encoder, cut(sentences, SENTENCES, folder), folder / f"warm-{workers}")
            for times in TIMES:
                runs = [
                    measured(cluster, settings, encoder, cut(sentences, SENTENCES * times, folder), folder / out)
                    for out in (f"{workers}-{times}-{number}" for number in range(REPEATS if times == 1 else 1))
                ]
                yield workers, times, {name: median(run[name] for run in runs) for name in runs[0]}


def warm(_: int) -> float:
    """Load the imports and the encoder on the worker that runs this; returns the seconds of loading the encoder."""
    import fusionkit.encode.worker  # noqa: F401

    began = time.perf_counter()
    load_encoder("minilm", device="cpu")
    return time.perf_counter() - began


def write_rate(folder: Path, count: int = 20) -> float:
    """Bytes per second of writing durable chunks one after another."""
    shape = layout.StatesLayout(ROWS_A_PART, LAYERS, HIDDEN, ROWS_A_PART, "float16")
    values = np.random.default_rng(0).normal(size=(LAYERS, ROWS_A_PART, HIDDEN)).astype(np.float16)
    began = time.perf_counter()
    for number in range(count):
        write_chunk(layout.chunk_path(folder, "train", number), values, shape.arrays[0])
    return count * values.nbytes / (time.perf_counter() - began)


def main() -> None:
    layout.CHUNK_BYTES = ROWS_A_PART * BYTES_A_ROW
    sentences = Path(sys.argv[1]).read_text(encoding="utf-8").strip().split("\n\n")
    assert len(sentences) >= SENTENCES * TIMES[-1], "too few sentences"
    p = r = o = worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        d = write_rate(Path(name) / "chunks")
        for workers, times, found in all_runs(sentences, Path(name)):
            n, parts = found["tokens"], found["parts"]
            if first := not p:
                p = n / found["plan"]
                r = n / (found["in parts"] - parts * found["bytes"] / d)
                o = (found["encode"] - found["in parts"]) / parts
                print(
                    f"p {p:,.0f} sub-tokens/s, r {r:,.0f} sub-tokens/s, d {d / 1e9:.2f} GB/s, o {o * 1e3:.0f} ms a part"
                )
                print(
                    "workers  data  sub-tokens  parts   plan, s: predicted   run   encode, s: predicted    run   ratio"
                    "  at work"
                )
            plan, work = n / p, -(-parts // workers) * (n / parts / r + found["bytes"] / d + o)
            ratio = found["encode"] / work
            worst = max(worst, abs(ratio - 1) if workers == 1 else 0.0)
            print(
                f"{workers:7d}  {times:3d}×  {n:10,.0f}  {parts:5.0f}  {plan:18.1f}  {found['plan']:5.1f}"
                f"  {work:20.1f}  {found['encode']:6.1f}   {ratio:5.2f}  {found['in parts'] / found['encode']:7.2f}"
                + ("   (what the others are predicted from)" if first else ""),
                flush=True,
            )
    assert worst < LIMIT, f"{worst:.0%} apart with one worker"


if __name__ == "__main__":
    main()
