"""The whole of stage one: plan, parts, commit, one after the other. Called again, it does what is missing.

plan     :func:`fusionkit.encode.open_plan.open_plan`    tokenise everything and lay out the arrays
parts    :func:`fusionkit.encode.serial.serial_parts`    encode each part, or another map over parts
commit   :func:`fusionkit.encode.commit.commit`          write the manifest
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fusionkit.encode.commit import commit
from fusionkit.encode.job import EncodeProgress, EncodeReport, Job, make_job
from fusionkit.encode.lock import only_encoder
from fusionkit.encode.open_plan import open_plan
from fusionkit.encode.part_records import all_parts, finished_parts
from fusionkit.encode.publish import clear_leftovers
from fusionkit.encode.serial import PartsRunner, serial_parts
from fusionkit.encoder import Encoder
from fusionkit.places import Place, place_errors
from fusionkit.sources import Columns, Source
from fusionkit.specs import EncodeSpec
from fusionkit.store.manifest import is_complete


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
    job = make_job(source, columns, out, spec, encoder, progress, budget, device)
    return encode_job(job, overwrite=overwrite, run_parts=run_parts, stop=stop)


def encode_job(
    job: Job, *, overwrite: bool = False, run_parts: PartsRunner | None = None, stop: Callable[[], bool] = lambda: False
) -> EncodeReport:
    """Do a job, or finish it; arguments and errors as :func:`encode`."""
    out = job.out
    with place_errors(out), only_encoder(out) as check_lock:
        began = time.perf_counter()
        clear_leftovers(out)
        plan, resumed = open_plan(job, overwrite)
        if is_complete(out):
            return EncodeReport("complete", time.perf_counter() - began, 0, plan)
        tokens = encode_parts(job, plan, run_parts, check_lock, stop)
        manifest = commit(out, plan, job.device or str(job.encoder.device))
        return EncodeReport("resumed" if resumed else "encoded", time.perf_counter() - began, tokens, manifest)


def encode_parts(
    job: Job,
    plan: dict[str, Any],
    run_parts: PartsRunner | None,
    check_lock: Callable[[], None],
    stop: Callable[[], bool],
) -> int:
    """Encode the parts that are missing.

    Args:
        check_lock: raises :class:`StoreError` where another process has taken over the store.

    Returns:
        how many sub-tokens were encoded.
    """
    finished = finished_parts(job.out, plan)
    missing = [part for part in all_parts(plan) if part not in finished]
    total = sum(fields["tokens"] for fields in plan["splits"].values())
    job.progress.step("encoding", total, sum(record.tokens for record in finished.values()), "sub-tokens")

    def is_stopped() -> bool:
        check_lock()  # a part must not be written into a store that another process has taken over
        return stop()

    run = run_parts or serial_parts(job.encoder, is_stopped)
    tokens = 0
    for record in run(job.out, plan, missing, job.progress):
        check_lock()
        tokens += record.tokens
    check_lock()
    return tokens
