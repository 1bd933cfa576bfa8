"""What share of the encoder's own speed does encoding reach, and where does the rest go?

    python benchmarks/encode.py [SOURCE] [--stages] [--sink none copy crc shm disk] [--writers 1 2 4]
        [--batch-tokens N …] [--batch-overhead N …] [--chunk-mib N …] [--json]

The limit, which no store can beat, is a bare forward pass over the same sorted, padded batches that keeps no output.
The contender encodes the parts of a planned store: alignment, conversion, checksums, synced files. Planning is timed
separately. Both sides count the same sub-tokens, those that go through the encoder: without padding, and only the first
of repeated sequences. Both run in this process, in turn, --repeats times. Each pair gives a ratio, and the median of
the ratios counts, so that drift of the machine affects both sides. The ratio of processor seconds is printed too: other
work on the machine changes it less, and on a GPU it says little. Where a store is written, the other limit is what the
folder takes: files of 64 MiB, synced, from as many threads as write parts (write_ceiling.py has more), in turn with the
two. A store is deleted after its repeat. An encode of less than 20 s says little: --copies encodes the text several
times and adds a different word each time, so that no sequence repeats another.

--sink leaves out the last steps: `none` computes rows and drops them, `copy` puts them in order (on a GPU: copies them
to the host), `crc` also checks and checksums them, `shm` writes to /dev/shm, `disk` to --work. The first three write
nothing: repeated sequences are read from a store that was encoded before. --batch-tokens tries other budgets of a
batch, --batch-overhead other fixed costs, --chunk-mib other chunks: a batch has the sequences of one chunk, so larger
chunks allow fuller batches. Choose those with the most sub-tokens per second, not the best ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Self
from unittest import mock

import numpy as np
import torch
from memory import write_times  # type: ignore[import-not-found]
from stages import Stages, watched  # type: ignore[import-not-found]
from write_ceiling import WAYS, page_aligned, rate  # type: ignore[import-not-found]

from fusionkit.bundled import travel_desk
from fusionkit.encode.batches import PartReader
from fusionkit.encode.batching import OVERHEAD, TOKENS, Batching
from fusionkit.encode.job import Job, make_job
from fusionkit.encode.open_plan import open_plan
from fusionkit.encode.output_blocks import is_finite
from fusionkit.encode.part_records import PartRecord, all_parts
from fusionkit.encode.parts import ComputedPart, PartEncoder
from fusionkit.encode.pipeline import WRITERS, commit, serial_parts
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.errors import UsageError
from fusionkit.io.places import Place
from fusionkit.machine.devices import device_of
from fusionkit.sources import Source, guess_columns, open_source
from fusionkit.specs import COMPUTE_DTYPES, EncodeSpec
from fusionkit.store.chunks import Checksummed
from fusionkit.store.layout import CHUNK_BYTES

SINKS = ("none", "copy", "crc", "shm", "disk")
SHM = Path("/dev/shm")
SHORT = 20.0  # seconds


def wait_for(encoder: Encoder) -> None:
    if encoder.device.type == "cuda":
        torch.cuda.synchronize(encoder.device)


class Seconds(NamedTuple):
    """Wall and processor seconds of this process, all its threads together."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Self:
        return cls(time.perf_counter(), time.process_time())

    def since(self, began: Seconds) -> Seconds:
        return Seconds(self.wall - began.wall, self.processor - began.processor)


def bare_forward(store: Place, plan: dict[str, Any], encoder: Encoder) -> tuple[int, int, Seconds]:
    """Sub-tokens, padded sub-tokens and seconds of the forward passes alone, over the batches of a planned store.

    All batches are on the device before the clock starts: 24 bytes a padded sub-token.
    """
    reader = PartReader(store, plan)
    tokens, prepared = 0, []
    for part in map(reader.read, all_parts(plan)):
        lengths = np.diff(part.offsets)
        for batch in part.all_batches(Batching.of(plan), encoder.pad_id):
            tokens += int(lengths[batch.examples].sum())
            inputs = (batch.token_ids, batch.mask, batch.segments)
            prepared.append([tensor.to(encoder.device) for tensor in inputs])
    wait_for(encoder)
    began = Seconds.now()
    for token_ids, mask, segments in prepared:
        encoder.forward(token_ids, mask, segments)
    wait_for(encoder)
    return tokens, sum(batch[0].numel() for batch in prepared), Seconds.now().since(began)


def encode_all(store: Place, plan: dict[str, Any], job: Job, writers: int | None) -> Seconds:
    """Seconds of encoding the parts and, where they were written, of the commit."""
    began = Seconds.now()
    run = serial_parts(job.encoder, lambda: False, writers)
    records = list(run(store, plan, all_parts(plan), job.progress))
    if all(record.crc32c for record in records):
        commit(store, plan, str(job.encoder.device))
    wait_for(job.encoder)  # with the sink `none` nothing has waited for the last parts
    return Seconds.now().since(began)


@contextlib.contextmanager
def nothing_written(sink: str) -> Iterator[None]:
    """Replace :meth:`PartEncoder.write` by a function that ends at the sink and writes nothing."""

    def write(self: PartEncoder, computed: ComputedPart, *_: Any) -> PartRecord:
        try:
            if sink != "none":
                block = computed.finish_transfer(None)
            if sink == "crc":
                is_finite(block)
                for array in block.arrays().values():
                    deque(Checksummed(np.ascontiguousarray(array).reshape(-1).view(np.uint8)), maxlen=0)
        finally:
            self.free(computed)
        return PartRecord(computed.part.split, computed.part.chunk, 0, computed.tokens, 0.0, {}, {})

    with mock.patch.object(PartEncoder, "write", write):
        yield


def planned(job: Job) -> tuple[dict[str, Any], float]:
    """The plan of a new store, and the seconds of planning."""
    shutil.rmtree(str(job.out), ignore_errors=True)
    began = time.perf_counter()
    return open_plan(job, overwrite=False)[0], time.perf_counter() - began


def write_ceiling(folder: Path, threads: int) -> float:
    """Bytes per second of synced files from some threads, past the page cache or through it, whichever is faster."""
    blocks, chunks, found = [page_aligned() for _ in range(threads)], 2 * threads + 4, [0.0]
    with tempfile.TemporaryDirectory(dir=folder) as place, contextlib.suppress(OSError):  # some lack O_DIRECT
        found.append(rate(WAYS["direct"], Path(place), blocks, chunks))
    with tempfile.TemporaryDirectory(dir=folder) as place:
        found.append(rate(WAYS["synced"], Path(place), blocks, chunks))
    return max(found)


def print_stages(stages: Stages, whole: Seconds) -> None:
    heads = f"{'calls':>7} {'wall, s':>9} {'processor, s':>13} {'waiting for a core, s':>22} {'of the wall':>12}"
    print(f"  {'thread':10} {'stage':44} {heads}")
    for thread, stage, calls, wall, own, waiting in stages.rows():
        if wall >= 0.0005 * whole.wall or stage.startswith("sync"):
            share = wall / whole.wall
            print(f"  {thread:10} {stage:44} {calls:7} {wall:9.3f} {own:13.3f} {waiting:22.3f} {share:12.1%}")
    print(f"  {'all':10} {'the whole process':44} {'':7} {whole.wall:9.3f} {whole.processor:13.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default=str(travel_desk("en")))
    parser.add_argument("--limit", type=int, help="examples a split")
    parser.add_argument("--copies", type=int, default=1, help="times the text, of the first split alone")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--rows", help="as `fusionkit encode --rows`")
    parser.add_argument("--compute-dtype", choices=COMPUTE_DTYPES, default="float32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sink", nargs="+", choices=SINKS, default=["disk"])
    parser.add_argument("--writers", nargs="+", type=int, default=[None], help="threads that write; as encode has it")
    parser.add_argument("--batch-tokens", nargs="+", type=int, default=[None], help="padded sub-tokens a batch")
    parser.add_argument("--batch-overhead", nargs="+", type=int, default=[None], help="fixed cost in sub-tokens")
    parser.add_argument("--chunk-mib", nargs="+", type=int, default=[CHUNK_BYTES >> 20], help="states of a chunk, MiB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stages", action="store_true", help="calls and seconds of each stage, of the last repeat")
    parser.add_argument(
        "--trace", type=Path, help="a trace of torch.profiler of one more encode, for Chrome or Perfetto"
    )
    parser.add_argument("--work", type=Path, help="where stores are written [default: a temporary folder]")
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as work, contextlib.ExitStack() as stack:
        source = open_source(options.source)
        columns = guess_columns(source)
        if options.limit:
            source = Source(source.name, {k: examples.limited(options.limit) for k, examples in source.splits.items()})
        if options.copies > 1:
            write_times(next(iter(source.splits.values())), columns, options.copies, Path(work) / "train.jsonl")
            source = open_source(str(Path(work) / "train.jsonl"))
            columns = guess_columns(source)
        words = columns.tokens is not None
        try:
            device_of(options.device)
            encoder = load_encoder(
                options.encoder, device=options.device, words=words, compute_dtype=options.compute_dtype
            )
            encoder.refuse_device()
        except UsageError as error:
            parser.error(str(error))
        spec = EncodeSpec(rows=options.rows, compute_dtype=options.compute_dtype)
        shm = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=SHM))) if "shm" in options.sink else Path(work)
        job = make_job(source, columns, Path(work) / "bench.store", spec, encoder)
        ratios: dict[str, float] = {}
        for budget, overhead, mib in product(options.batch_tokens, options.batch_overhead, options.chunk_mib):
            kind = "cuda" if encoder.device.type == "cuda" else "cpu"
            with (
                mock.patch.dict(TOKENS, {} if budget is None else {kind: budget}),
                mock.patch.dict(OVERHEAD, {} if overhead is None else {kind: overhead}),
                mock.patch("fusionkit.store.layout.CHUNK_BYTES", mib << 20),
            ):
                plan, _ = planned(job)
                encode_all(job.out, plan, job, None)  # warms up, and writes the rows of repeated sequences
                for sink in options.sink:
                    for writers in options.writers:
                        label = sink if writers is None else f"{sink}, {writers} writers"
                        label += "" if budget is None else f", batches of {budget:,}"
                        label += "" if overhead is None else f", overhead {overhead:,}"
                        label += f", chunks of {mib} MiB" if mib << 20 != CHUNK_BYTES else ""
                        ratios[label] = compared(job, plan, label, sink, writers, shm, options)
                if options.trace:  # of the last choice of budgets
                    with torch.profiler.profile() as profile:
                        kept, _ = planned(make_job(source, columns, Path(work) / "traced.store", spec, encoder))
                        encode_all(Path(work) / "traced.store", kept, job, None)
                    profile.export_chrome_trace(str(options.trace))
        if options.json:
            print(json.dumps({f"encode_over_bare_forward, {label}": round(each, 3) for label, each in ratios.items()}))


def compared(
    job: Job, plan: dict[str, Any], label: str, sink: str, writers: int | None, shm: Path, options: argparse.Namespace
) -> float:
    """The median ratio of an encode's speed to that of a bare forward pass, the two run in turn.

    Prints each pair and, if asked, the stages.
    """
    ratios, work, of_ceiling = [], [], []
    threads = writers or WRITERS.get(job.encoder.device.type, 1)
    for repeat in range(options.repeats):
        watch = options.stages and repeat == options.repeats - 1
        with contextlib.ExitStack() as stack:
            if sink in ("shm", "disk"):
                place = (shm if sink == "shm" else job.out.parent) / "repeat.store"
                own = make_job(job.source, job.columns, place, job.spec, job.encoder)
                fresh, planning = planned(own)
            else:
                stack.enter_context(nothing_written(sink))
                own, fresh, planning = job, plan, 0.0
            stages = stack.enter_context(watched()) if watch else Stages()
            taken = encode_all(own.out, fresh, own, writers)
            if own is not job:
                size = sum(path.stat().st_size for path in Path(str(own.out)).rglob("*") if path.is_file())
                shutil.rmtree(str(own.out))
        tokens, padded, bare = bare_forward(job.out, plan, job.encoder)
        ratios.append(bare.wall / taken.wall)
        work.append(bare.processor / taken.processor)
        wrote = ""
        if own is not job:
            speed, most = size / taken.wall, write_ceiling(Path(str(own.out)).parent, threads)
            of_ceiling.append(speed / most)
            wrote = f"   {speed / 1e9:.2f} GB/s, the folder takes {most / 1e9:.2f} ({of_ceiling[-1]:.2f})"
        print(
            f"{label}: encode {tokens / taken.wall:9,.0f} sub-tokens/s ({taken.wall:.1f} s, {taken.processor:.1f} of "
            f"the processor)   bare forward {tokens / bare.wall:9,.0f} ({bare.wall:.1f}, {bare.processor:.1f})   "
            f"ratio {ratios[-1]:.2f}, of the processor {work[-1]:.2f}{wrote}",
            flush=True,
        )
        if watch:
            print_stages(stages, taken)
    print(f"  {padded / tokens:.2f} padded sub-tokens for a real one" + f"; planning {planning:.1f} s" * bool(planning))
    if taken.wall < SHORT:
        more = int(options.copies * SHORT / taken.wall) + 1
        print(f"  an encode of {taken.wall:.1f} s is short: --copies {more} says more")
    ratio = statistics.median(ratios)
    print(
        f"{label}: encode reaches {ratio:.2f} of the bare forward pass on {job.encoder.device}, "
        f"{statistics.median(work):.2f} by processor time"
        + (f", and {statistics.median(of_ceiling):.2f} of what the folder takes" if of_ceiling else "")
    )
    return ratio


if __name__ == "__main__":
    main()
