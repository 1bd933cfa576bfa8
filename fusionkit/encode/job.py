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

from fusionkit.encode.batches import Part
from fusionkit.encode.lock import only_encoder
from fusionkit.encode.parts import (
    NotFiniteError,
    PartRecord,
    all_parts,
    compute_part,
    finish_part,
    finished,
    not_finite,
)
from fusionkit.encode.plan import choose_rows, clear_leftovers, identity_of, write_plan
from fusionkit.encoder import Encoder
from fusionkit.errors import StoppedError, StoreError, UsageError
from fusionkit.files import disk_errors, write_json
from fusionkit.sources import Columns, Source, prepared
from fusionkit.specs import EncodeSpec
from fusionkit.store.layout import states_path
from fusionkit.store.manifest import (
    MANIFEST,
    PLAN,
    agreed_layout,
    checked,
    is_complete,
    is_store,
    read_plan,
    refuse_other,
)
from fusionkit.store.verify import small_files

QUEUED_PARTS = 2  # finished blocks that may wait for the disk before the encoder waits too


class EncodeProgress(Protocol):
    """Who watches an encode: the command line's bars, or nobody."""

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        """A stage of ``total`` units begins with ``done`` of them already there."""

    def advance(self, count: int) -> None:
        """More units of the current stage are done."""

    def say(self, line: str) -> None:
        """Something the user should know."""


class Silent:
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


PartsRunner = Callable[[Path, dict[str, Any], list[Part], EncodeProgress], Iterator[PartRecord]]


def encode(
    source: Source,
    columns: Columns,
    out: Path,
    spec: EncodeSpec,
    encoder: Encoder,
    *,
    overwrite: bool = False,
    progress: EncodeProgress | None = None,
    run_parts: PartsRunner | None = None,
    stop: Callable[[], bool] = lambda: False,
    budget: int | None = None,
) -> EncodeReport:
    """Encode a source into a store, or finish one that was begun.

    Args:
        columns: roles as :func:`fusionkit.sources.guess_columns` gives them.
        out: the store's folder; its parent must exist or be creatable.
        overwrite: replace a finished store, or one of another identity; an unfinished one of this identity goes on.
        run_parts: the map over parts; serial in this process unless given.
        budget: bytes the finished store may have.
        stop: asked between parts; True ends the work there with :class:`StoppedError`.

    Raises:
        IdentityError: ``out`` holds a store of something else. UsageError: ``out`` holds other files.
        FusionkitError: the disk is full, the encoder's numbers are not finite; finished parts are kept.
    """
    watch = progress or Silent()
    if out.is_symlink() or not out.name:  # the plan is renamed into its place: not over a link, nor onto "."
        out = out.resolve()
    source, notes = prepared(source, columns)
    for note in [*source.notes, *notes]:
        watch.say(note)
    rows = choose_rows(spec.rows, columns, encoder)
    identity = identity_of(source, columns, encoder, spec, rows)
    _refuse_foreign_folder(out)
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with only_encoder(out):
        began = time.perf_counter()
        clear_leftovers(out)
        resumed = is_store(out) and (not overwrite or _begun(out, identity))
        if resumed:
            known = checked(out / MANIFEST) if is_complete(out) else read_plan(out)
            refuse_other(out, known["identity"], json.loads(json.dumps(identity)))
            for split in known["splits"]:
                agreed_layout(out, known, split)
            if is_complete(out):
                (out / PLAN).unlink(missing_ok=True)
                return EncodeReport("complete", time.perf_counter() - began, 0, known)
        else:
            watch.step("tokenising", sum(table.num_rows for table in source.splits.values()), 0, "examples")
            write_plan(out, source, columns, encoder, spec, identity, watch.advance, budget)
        plan = read_plan(out)
        for split, fields in plan["splits"].items():
            if fields["cut"]:
                watch.say(f"{split}: {fields['cut']} texts are longer than {identity['max_length']} sub-tokens: cut")
            if fields["masked"]:
                watch.say(f"{split}: {fields['masked']} words have no sub-token (cut or empty): masked, not dropped")
        done = [record for part in all_parts(plan) if (record := finished(out, plan, part))]
        there = {(record.split, record.chunk) for record in done}
        missing = [part for part in all_parts(plan) if (part.split, part.chunk) not in there]
        total = sum(fields["tokens"] for fields in plan["splits"].values())
        watch.step("encoding", total, sum(record.tokens for record in done), "sub-tokens")
        runner = run_parts or serial_parts(encoder, stop)
        fresh = list(runner(out, plan, missing, watch))
        manifest = commit(out, plan, encoder)
        return EncodeReport(
            "resumed" if resumed else "encoded",
            time.perf_counter() - began,
            sum(record.tokens for record in fresh),
            manifest,
        )


def serial_parts(encoder: Encoder, stop: Callable[[], bool]) -> PartsRunner:
    """Parts one after another in this process; a thread writes one while the next is computed."""

    def run(store: Path, plan: dict[str, Any], parts: list[Part], watch: EncodeProgress) -> Iterator[PartRecord]:
        waiting: list[tuple[Part, Future[PartRecord]]] = []
        done = 0

        def first_record() -> PartRecord:
            part, future = waiting.pop(0)
            try:
                return future.result()
            except NotFiniteError as error:
                raise not_finite(store, plan, encoder, part) from error

        with ThreadPoolExecutor(1, thread_name_prefix="writer") as writer:
            for part in parts:
                if stop():
                    break
                done += 1
                start = time.perf_counter()
                block, tokens = compute_part(store, plan, encoder, part, watch.advance)
                waiting.append((part, writer.submit(finish_part, store, plan, part, block, tokens, start)))
                # A failed write stops the work here, one part later, not at the end.
                while waiting and (len(waiting) > QUEUED_PARTS or waiting[0][1].done()):
                    yield first_record()
            while waiting:
                yield first_record()
        if done < len(parts):
            raise StoppedError(
                f"stopped with {len(parts) - done} of {len(parts)} parts of {store} to do",
                remedy="run the same command again: finished parts are kept",
            )

    return run


def commit(out: Path, plan: dict[str, Any], encoder: Encoder) -> dict[str, Any]:
    """Write the manifest, last of all: from here on the store is complete.

    Raises:
        StoreError: a part is not finished.
    """
    manifest = {
        **plan,
        "splits": {split: {**fields, "chunks": []} for split, fields in plan["splits"].items()},
    }
    seconds = 0.0
    for part in all_parts(plan):
        record = finished(out, plan, part)
        if record is None:
            raise StoreError(
                f"part {part.chunk} of {part.split} in {out} is not finished",
                remedy="run the same command again",
            )
        manifest["splits"][part.split]["chunks"].append(record.crc32c)
        seconds += record.seconds
    manifest["files"] = small_files(out)
    manifest["provenance"] = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 3),
        "device": str(encoder.device),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "fusionkit": version("fusionkit"),
    }
    write_json(out / MANIFEST, manifest)
    (out / PLAN).unlink()
    return manifest


def _begun(out: Path, identity: dict[str, Any]) -> bool:
    """An unfinished store of this identity: an interrupted --overwrite goes on with it."""
    try:
        return not is_complete(out) and bool(read_plan(out)["identity"] == json.loads(json.dumps(identity)))
    except StoreError:
        return False


def _refuse_foreign_folder(out: Path) -> None:
    # Other programs write a manifest.json too; --overwrite must not empty their folders.
    ours = is_store(out) and states_path(out).is_dir()
    if out.exists() and not ours and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(
            f"{out} exists and is no store",
            expected="a new place, an empty folder or a store",
            received="a file" if out.is_file() else "a folder with other files",
            remedy="choose another --out; nothing was touched",
        )
