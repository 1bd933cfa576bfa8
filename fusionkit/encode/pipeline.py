"""Stage one in its three steps: plan, parts, commit. Called again, it does what is missing.

plan     :func:`fusionkit.encode.open_plan.open_plan`    tokenise everything and lay out the arrays
parts    :func:`serial_parts` or another map over parts  encode each part
commit   :func:`commit`                                  write the manifest
"""

from __future__ import annotations

import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fusionkit.encode.batches import Part
from fusionkit.encode.job import EncodeProgress, EncodeReport, Job, make_job
from fusionkit.encode.lock import only_encoder
from fusionkit.encode.open_plan import is_finished, left_as_it_is, open_plan
from fusionkit.encode.part_records import PartRecord, all_parts, clear_failures, finished_parts
from fusionkit.encode.parts import NotFiniteError, PartEncoder, ReadPart
from fusionkit.encode.publish import clear_leftovers
from fusionkit.encoder import Encoder
from fusionkit.errors import StoppedError, StoreError
from fusionkit.io.files import write_json
from fusionkit.io.places import Place, place_errors, remove
from fusionkit.machine.memory import keep_freed_memory
from fusionkit.plural import counted
from fusionkit.sources import Columns, Source
from fusionkit.specs import EncodeSpec, canonical_json
from fusionkit.store.manifest import split_layout
from fusionkit.store.presence import MANIFEST, PLAN, is_complete
from fusionkit.store.verify import refuse_changed_files

# A map over parts: it encodes the given parts of a planned store and yields the record of each.
PartsRunner = Callable[[Place, dict[str, Any], list[Part], EncodeProgress], Iterator[PartRecord]]

# Threads that write parts. On a CPU one keeps up with the encoder. A GPU computes a part in less time than it takes to
# write it durably.
WRITERS = {"cpu": 1, "cuda": 4}
# Seconds that Python's lock stays with a thread while another waits for it. By default they are 0.005: as long as a
# GPU's batch takes, while the thread that launches its kernels would wait for the reader.
SWITCH_SECONDS = 2e-4


def buffers_of(writers: int) -> int:
    """The number of parts in memory: one is computed while each writer writes one; then the encoder waits. With one
    more, the peak of memory would depend on the speed of the disk.
    """
    return writers + 1


def encode(
    source: Source,
    columns: Columns,
    out: Place,
    spec: EncodeSpec,
    encoder: Encoder,
    *,
    overwrite: bool = False,
    progress: EncodeProgress | None = None,
    run_parts: PartsRunner | None = None,
    stop: Callable[[], bool] = lambda: False,
    budget: int | None = None,
    device: str | None = None,
) -> EncodeReport:
    """Encode a source into a store, or finish one that was begun.

    Args:
        columns: roles, as from :func:`fusionkit.sources.guess_columns`.
        out: the store's place, a folder or an address on object storage; folders above it are created.
        overwrite: replace a finished store, or one of another identity; an unfinished one of this identity is finished.
        run_parts: the map over parts; by default :func:`serial_parts` in this process.
        budget: the most bytes that the finished store may have.
        device: ``cpu`` or ``cuda``, if ``run_parts`` encodes on another device than the encoder's.
        stop: called between blocks of the plan and between parts; True ends the work there with :class:`StoppedError`.
            Finished parts are kept, but nothing of a plan that is not complete.

    Raises:
        IdentityError: ``out`` holds a store of another identity. UsageError: ``out`` holds other files, or the device
            does not have the requested precision.
        FusionkitError: the disk is full, or the encoder's numbers are not finite; finished parts are kept.
    """
    job = make_job(source, columns, out, spec, encoder, progress, budget, device)
    return encode_job(job, overwrite=overwrite, run_parts=run_parts, stop=stop)


def encode_job(
    job: Job, *, overwrite: bool = False, run_parts: PartsRunner | None = None, stop: Callable[[], bool] = lambda: False
) -> EncodeReport:
    """Run a job, or finish it; arguments and errors as :func:`encode`."""
    out, began = job.out, time.perf_counter()
    if not overwrite and (manifest := left_as_it_is(job)) is not None:
        return EncodeReport("complete", time.perf_counter() - began, 0, manifest)
    if run_parts is None and (overwrite or not is_finished(job)):
        job.encoder.refuse_device()
    with place_errors(out), only_encoder(out) as check_lock:
        clear_leftovers(out)
        plan, resumed = open_plan(job, overwrite, stop, check_lock)
        if is_complete(out):
            return EncodeReport("complete", time.perf_counter() - began, 0, plan)
        finished = finished_parts(out, plan)
        missing = [part for part in all_parts(plan) if part not in finished]
        total = sum(fields["tokens"] for fields in plan["splits"].values())
        done = sum(record.tokens for record in finished.values())  # an example over a border is in two parts
        job.progress.step("encoding", total, min(done, total), "sub-tokens")

        def is_stopped() -> bool:
            check_lock()  # a part must not be written into a store that another process has taken over
            return stop()

        tokens = 0
        run = run_parts or serial_parts(job.encoder, is_stopped, check=check_lock)
        for record in run(out, plan, missing, job.progress):
            check_lock()
            tokens += record.tokens
        check_lock()
        manifest = commit(out, plan, job.device or str(job.encoder.device))
        return EncodeReport("resumed" if resumed else "encoded", time.perf_counter() - began, tokens, manifest)


def serial_parts(
    encoder: Encoder, stop: Callable[[], bool], writers: int | None = None, check: Callable[[], None] = lambda: None
) -> PartsRunner:
    """A map over parts that encodes one part after another.

    While a part is computed, the next part is read and earlier ones are written.

    Args:
        stop: called before each part; True ends the work with :class:`StoppedError`. writers: threads that write; None
            for as many as the encoder's device needs. check: as in :meth:`PartEncoder.write`.
    """
    writers = writers or WRITERS.get(encoder.device.type, 1)

    def run(store: Place, plan: dict[str, Any], parts: list[Part], progress: EncodeProgress) -> Iterator[PartRecord]:
        if not parts:  # a process that only plans may have no device of the encoder's precision
            return
        keep_freed_memory()  # each batch reuses the memory of the states freed before it
        on_gpu = encoder.device.type == "cuda"
        part_encoder = PartEncoder(store, plan, encoder, buffers_of(writers))
        waiting = deque(parts)
        writes: deque[tuple[Part, Future[PartRecord]]] = deque()

        def next_record() -> PartRecord:
            part, future = writes.popleft()
            try:
                return future.result()
            except NotFiniteError as error:  # it is encoded again here: the writer's thread must not use the encoder
                raise part_encoder.not_finite(part) from error

        with (
            quick_switches() if on_gpu else nullcontext(),
            ThreadPoolExecutor(writers, "writer") as writer,
            ThreadPoolExecutor(1, "reader") as reader,
        ):
            reads: deque[Future[ReadPart]] = deque(reader.submit(part_encoder.read, part) for part in parts[:1])
            while waiting and not stop():
                start = time.perf_counter()
                part, given = waiting.popleft(), reads.popleft().result()
                if waiting:
                    reads.append(reader.submit(part_encoder.read, waiting[0]))
                computed = part_encoder.compute(part, given, start, progress.advance)
                writes.append((part, writer.submit(part_encoder.write, computed, check)))
                # Results are taken now, so that a failed write ends the work at once.
                while writes and writes[0][1].done():
                    yield next_record()
            while writes:
                yield next_record()
        if waiting:
            raise StoppedError(
                f"stopped with {len(waiting)} of {counted(len(parts), 'part')} of {store} to do",
                remedy="run the same command again: finished parts are kept",
            )

    return run


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let threads hand over Python's lock every :data:`SWITCH_SECONDS` inside the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def commit(
    out: Place, plan: dict[str, Any], device: str, records: dict[Part, PartRecord] | None = None
) -> dict[str, Any]:
    """Write the manifest, which completes the store, and remove the plan.

    Args:
        device: what the parts were encoded on. records: of the finished parts; None to read them.

    Raises:
        StoreError: a part is not finished, or a file of the plan was changed.
    """
    records = finished_parts(out, plan) if records is None else records
    for part in all_parts(plan):
        if part not in records:
            raise StoreError(
                f"part {part.chunk} of {part.split} in {out} is not finished", remedy="run the same command again"
            )
    clear_failures(out)
    if isinstance(out, Path):  # this would fetch all remote files; `fusionkit verify` does that
        refuse_changed_files(out, plan["files"])
    provenance = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(sum(record.seconds for record in records.values()), 3),
        "device": device,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "fusionkit": version("fusionkit"),
        "computed_with": _different(record.computed_with for record in records.values()),
    }
    manifest = {**plan, "splits": _splits(plan, records), "provenance": provenance}
    write_json(out / MANIFEST, manifest)
    remove(out / PLAN)
    return manifest


def _different(facts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The distinct values, sorted by their JSON text."""
    texts = {canonical_json(each): each for each in facts}
    return [texts[text] for text in sorted(texts)]


def _splits(plan: dict[str, Any], records: dict[Part, PartRecord]) -> dict[str, Any]:
    """The plan's fields of each split, with the checksums of its chunks by array."""
    found = {}
    for split, fields in plan["splits"].items():
        layout = split_layout(plan, split)
        checksums = [records[Part(split, chunk)].crc32c for chunk in range(layout.chunks)]
        found[split] = {
            **fields,
            "chunks": {array.name: [one[array.name] for one in checksums] for array in layout.arrays},
        }
    return found
