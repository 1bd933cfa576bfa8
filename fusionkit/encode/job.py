"""The whole of stage one: plan → parts → commit. Run again, it does what is missing."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from fusionkit.encode.batches import Part, PartReader
from fusionkit.encode.failed_parts import clear_failures
from fusionkit.encode.freed_memory import give_back
from fusionkit.encode.lock import only_encoder
from fusionkit.encode.output_blocks import TORCH_DTYPES, OutputBlock, PartBuffer, PartBufferPool
from fusionkit.encode.parts import (
    NotFiniteError,
    PartRecord,
    all_parts,
    compute_part,
    finish_part,
    finished_parts,
    not_finite,
    staging_for,
)
from fusionkit.encode.plan import choose_rows, identity_of, write_plan
from fusionkit.encode.publish import clear_leftovers, refuse_foreign
from fusionkit.encode.repeats import RepeatCache
from fusionkit.encoder import Encoder
from fusionkit.errors import StoppedError, StoreError
from fusionkit.files import disk_errors, write_json
from fusionkit.places import Place, place_errors, remove
from fusionkit.sources import Columns, Source, prepared
from fusionkit.specs import MASKED, EncodeSpec
from fusionkit.storage import UnansweredError
from fusionkit.store.manifest import (
    MANIFEST,
    PLAN,
    agreed_layout,
    checked,
    is_complete,
    is_store,
    read_plan,
    refuse_other,
    split_layout,
)
from fusionkit.store.verify import small_files

# One part being computed, one on its way to the disk; then the encoder waits too. A third would be made only when the
# disk is slow, and the peak of memory would be a matter of luck.
STAGINGS = 2
# Parts between two trims of freed memory: what is given back must be had again, 2.5 % of the time if after each part.
TRIM_EVERY = 8


class EncodeProgress(Protocol):
    """Who watches an encode: the command line's bars, or nobody."""

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        """A stage of ``total`` units begins with ``done`` of them already there."""

    def advance(self, count: int) -> None:
        """More units of the current stage are done."""

    def say(self, line: str) -> None:
        """Something the user should know."""


class NoProgress:
    """Nobody watches."""

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        return

    def advance(self, count: int) -> None:
        return

    def say(self, line: str) -> None:
        return


@dataclass(frozen=True)
class EncodeReport:
    """What an encode did.

    Attributes:
        outcome: ``encoded``, ``resumed`` or ``complete`` (nothing was left to do).
        seconds, tokens: of this call. manifest: the finished store's.
    """

    outcome: str
    seconds: float
    tokens: int
    manifest: dict[str, Any]


PartsRunner = Callable[[Place, dict[str, Any], list[Part], EncodeProgress], Iterator[PartRecord]]


@dataclass(frozen=True)
class Job:
    """What is to be encoded, and where.

    Attributes:
        source: as it is read for its columns. identity: of the store. The others: see :func:`encode`.
    """

    source: Source
    columns: Columns
    out: Place
    spec: EncodeSpec
    encoder: Encoder
    identity: dict[str, Any]
    watch: EncodeProgress
    budget: int | None
    device: str | None


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
        columns: roles as :func:`fusionkit.sources.guess_columns` gives them.
        out: the store's folder; its parent must exist or be creatable.
        overwrite: replace a finished store, or one of another identity; an unfinished one of this identity goes on.
        run_parts: the map over parts; serial in this process unless given.
        budget: bytes the finished store may have.
        device: ``cpu`` or ``cuda``, where ``run_parts`` encodes on another than the encoder's own.
        stop: asked between parts; True ends the work there with :class:`StoppedError`.

    Raises:
        IdentityError: ``out`` holds a store of something else. UsageError: ``out`` holds other files.
        FusionkitError: the disk is full, the encoder's numbers are not finite; finished parts are kept.
    """
    job = job_of(source, columns, out, spec, encoder, progress, budget, device)
    return encode_job(job, overwrite=overwrite, run_parts=run_parts, stop=stop)


def encode_job(
    job: Job, *, overwrite: bool = False, run_parts: PartsRunner | None = None, stop: Callable[[], bool] = lambda: False
) -> EncodeReport:
    """Do a job, or finish it; arguments and errors as :func:`encode`."""
    out, watch, encoder = job.out, job.watch, job.encoder
    with place_errors(out), only_encoder(out) as held:
        began = time.perf_counter()
        clear_leftovers(out)
        plan, resumed = planned(job, overwrite)
        if is_complete(out):
            return EncodeReport("complete", time.perf_counter() - began, 0, plan)
        done = finished_parts(out, plan)
        missing = [part for part in all_parts(plan) if part not in done]
        total = sum(fields["tokens"] for fields in plan["splits"].values())
        watch.step("encoding", total, sum(record.tokens for record in done.values()), "sub-tokens")

        def stops() -> bool:
            held()  # a part written into a store that another process has taken over would spoil it
            return stop()

        runner = run_parts or serial_parts(encoder, stops)
        fresh = []
        for record in runner(out, plan, missing, watch):
            held()
            fresh.append(record)
        held()
        manifest = commit(out, plan, job.device or str(encoder.device))
        return EncodeReport(
            "resumed" if resumed else "encoded",
            time.perf_counter() - began,
            sum(record.tokens for record in fresh),
            manifest,
        )


def job_of(
    source: Source,
    columns: Columns,
    out: Place,
    spec: EncodeSpec,
    encoder: Encoder,
    progress: EncodeProgress | None = None,
    budget: int | None = None,
    device: str | None = None,
) -> Job:
    """The work with its identity; says what there is to say of the source, and makes the folder that the store lies in.

    Raises:
        UsageError: ``out`` holds other files.
    """
    watch = progress or NoProgress()
    # The plan is renamed into its place: not over a link, nor onto ".".
    if isinstance(out, Path) and (out.is_symlink() or not out.name):
        out = out.resolve()
    source, notes = prepared(source, columns)
    for note in [*source.notes, *notes]:
        watch.say(note)
    rows = choose_rows(spec.rows, columns, encoder, spec.task)
    identity = identity_of(source, columns, encoder, spec, rows)
    with place_errors(out):
        refuse_foreign(out)
    if isinstance(out, Path):
        with disk_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
    return Job(source, columns, out, spec, encoder, identity, watch, budget, device)


def is_finished(job: Job) -> bool:
    """Whether the store is complete and of this very work, so that nobody is needed for it."""
    with place_errors(job.out):
        return is_complete(job.out) and _work(checked(job.out / MANIFEST)) == _wanted(job)


def planned(job: Job, overwrite: bool) -> tuple[dict[str, Any], bool]:
    """The store's plan, or the manifest where it is complete already, and whether it was there; the lock must be held.

    Raises:
        IdentityError: the place holds a store of something else.
    """
    out, watch = job.out, job.watch
    wanted = _wanted(job)
    resumed = is_store(out) and (not overwrite or _begun(out, wanted))
    if resumed:
        known = checked(out / MANIFEST) if is_complete(out) else read_plan(out)
        refuse_other(out, _work(known), wanted)
        for split in known["splits"]:
            agreed_layout(out, known, split)
        if is_complete(out):
            remove(out / PLAN)
            return known, True
    else:
        watch.step("tokenising", sum(table.num_rows for table in job.source.splits.values()), 0, "examples")
        write_plan(
            out, job.source, job.columns, job.encoder, job.spec, job.identity, watch.advance, job.budget, job.device
        )
    plan = read_plan(out)
    for split, fields in plan["splits"].items():
        if fields["cut"]:
            watch.say(f"{split}: {fields['cut']} texts are longer than {job.identity['max_length']} sub-tokens: cut")
        if plan["rows"] == MASKED:
            watch.say(f"{split}: {fields['rows']:,} of {fields['tokens']:,} sub-tokens are masked")
        if fields["masked"]:
            watch.say(f"{split}: {fields['masked']} words have no sub-token (cut or empty): masked, not dropped")
    return plan, resumed


def serial_parts(encoder: Encoder, stop: Callable[[], bool]) -> PartsRunner:
    """Parts one after another in this process; a thread writes one while the next is computed."""

    def run(store: Place, plan: dict[str, Any], parts: list[Part], watch: EncodeProgress) -> Iterator[PartRecord]:
        waiting: list[tuple[Part, Future[PartRecord]]] = []
        done = 0
        inputs = PartReader(store, plan)
        repeats = RepeatCache(store, plan, encoder, PartReader(store, plan), TORCH_DTYPES[plan["dtype"]])
        pool = PartBufferPool(STAGINGS, lambda: staging_for(plan, encoder))
        kept: list[OutputBlock] = []  # the writer's own, filled again and again

        def write(
            part: Part,
            tokens: int,
            staging: PartBuffer,
            arrive: Callable[[OutputBlock | None], OutputBlock],
            start: float,
        ) -> Any:
            try:
                kept[:] = [arrive(kept[0] if kept else None)]
                record = finish_part(store, plan, part, kept[0], tokens, start)
                repeats.written(part)
                return record
            finally:
                pool.give(staging)

        def first_record() -> PartRecord:
            part, future = waiting.pop(0)
            try:
                return future.result()
            except NotFiniteError as error:
                raise not_finite(store, plan, encoder, part) from error

        with ThreadPoolExecutor(1, "writer") as writer, ThreadPoolExecutor(1, "reader") as reader:
            following = reader.submit(inputs.read, parts[0]) if parts else None
            for part in parts:
                if stop() or following is None:
                    break
                done += 1
                start = time.perf_counter()
                given = following.result()
                if done < len(parts):
                    following = reader.submit(inputs.read, parts[done])
                staging = pool.take()
                compute_part(plan, encoder, part, given, repeats, staging, watch.advance)
                if done % TRIM_EVERY == 0:
                    give_back()
                waiting.append((part, writer.submit(write, part, given.tokens, staging, staging.hand_over(), start)))
                # A failed write stops the work here, one part later, not at the end.
                while waiting and waiting[0][1].done():
                    yield first_record()
            while waiting:
                yield first_record()
        if done < len(parts):
            raise StoppedError(
                f"stopped with {len(parts) - done} of {len(parts)} parts of {store} to do",
                remedy="run the same command again: finished parts are kept",
            )

    return run


def commit(out: Place, plan: dict[str, Any], device: str) -> dict[str, Any]:
    """Write the manifest, last of all: from here on the store is complete.

    Args:
        device: what it was encoded on.

    Raises:
        StoreError: a part is not finished.
    """
    records = finished_parts(out, plan)
    for part in all_parts(plan):
        if part not in records:
            raise StoreError(
                f"part {part.chunk} of {part.split} in {out} is not finished",
                remedy="run the same command again",
            )
    clear_failures(out)
    _refuse_changed_files(out, plan)
    manifest = {**plan, "splits": {}}
    for split, fields in plan["splits"].items():
        layout = split_layout(plan, split)
        of_split = [records[Part(split, chunk)].crc32c for chunk in range(layout.chunks)]
        chunks = {array.name: [crc32c[array.name] for crc32c in of_split] for array in layout.arrays}
        manifest["splits"][split] = {**fields, "chunks": chunks}
    seconds = sum(record.seconds for record in records.values())
    manifest["provenance"] = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 3),
        "device": device,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "fusionkit": version("fusionkit"),
    }
    write_json(out / MANIFEST, manifest)
    remove(out / PLAN)
    return manifest


def _refuse_changed_files(out: Place, plan: dict[str, Any]) -> None:
    """Files that are no longer what was planned, seen before the store is called complete."""
    if not isinstance(out, Path):
        return  # `verify` asks for them; here that would be a second download of everything but the states
    found = small_files(out)
    if found != plan["files"]:
        changed = sorted(dict(found.items() ^ plan["files"].items()))[0]
        raise StoreError(
            f"{out} is damaged",
            expected=f"{changed} as it was planned",
            received="another file" if changed in found else "none",
            remedy="encode again with --overwrite",
        )


def _wanted(job: Job) -> dict[str, Any]:
    return _work({"identity": json.loads(json.dumps(job.identity)), "compression": job.spec.compress})


def _work(known: dict[str, Any]) -> dict[str, Any]:
    """What a store's encode was asked for: its identity, and how the numbers are kept."""
    return {"pair_as": "one", **known["identity"], "compression": known["compression"]}


def _begun(out: Place, wanted: dict[str, Any]) -> bool:
    """An unfinished store of this work, as it was planned: an interrupted --overwrite goes on with it."""
    if is_complete(out):
        return False
    try:
        plan = read_plan(out)
        _refuse_changed_files(out, plan)
        for split in plan["splits"]:
            agreed_layout(out, plan, split)
    except UnansweredError:
        raise
    except StoreError:
        return False
    return _work(plan) == wanted
