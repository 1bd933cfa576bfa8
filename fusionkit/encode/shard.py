"""A share of a store's parts, for independent processes such as the tasks of an array job.

    parts of share i of n: those from ⌊(i − 1)·p / n⌋ to ⌊i·p / n⌋ of the plan's p parts, in their order

The first process writes the plan while the others wait. Each process encodes its own parts. The one that finishes the
last part writes the manifest. Share 0 has no parts: it writes the plan, and the manifest where all parts are finished.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from fusionkit.encode.job import EncodeReport, Job, NoProgress
from fusionkit.encode.lock import HeldError, only_encoder, refuse_other_shares
from fusionkit.encode.open_plan import is_finished, left_as_it_is, open_plan
from fusionkit.encode.part_records import all_parts, finished_parts
from fusionkit.encode.pipeline import commit, serial_parts
from fusionkit.encode.publish import clear_leftovers
from fusionkit.errors import StoppedError, UsageError
from fusionkit.io.places import listed, place_errors
from fusionkit.store.presence import PARTS, is_complete, is_store

WAIT_SECONDS = 0.5


class Shard(NamedTuple):
    """Share ``number``, from 1 to ``of``, or 0 for only the plan."""

    number: int
    of: int


def parse_shard(text: str) -> Shard:
    """Parse a share as the command line writes it, ``3/16``.

    Raises:
        UsageError: the text is not a share.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    shard = Shard(int(found[1]), int(found[2])) if found else Shard(-1, 0)
    if not 0 <= shard.number <= shard.of or shard.of < 1:
        raise UsageError(
            "--parts takes a share of the parts",
            expected="I/N with I from 1 to N, or 0/N for the plan alone",
            received=text,
            remedy="write it like 3/16",
        )
    return shard


def encode_shard(job: Job, shard: Shard, stop: Callable[[], bool] = lambda: False) -> EncodeReport:
    """Encode one share of the parts; the steps are those of :mod:`fusionkit.encode.pipeline`.

    Returns:
        the outcome ``share`` with the plan while parts of other shares are missing; otherwise what
        :func:`fusionkit.encode.encode` returns.

    Raises:
        HeldError: another process encodes this share, or one of another number of shares. Other errors as
            :func:`fusionkit.encode.encode`.
    """
    out, began = job.out, time.perf_counter()
    if (manifest := left_as_it_is(job)) is not None:
        return EncodeReport("complete", time.perf_counter() - began, 0, manifest)
    if shard.number and not is_finished(job):
        job.encoder.refuse_device()
    with place_errors(out), only_encoder(out, f"{shard.number}-of-{shard.of}") as check_lock:
        with _store_lock(job, stop) as check_store:
            refuse_other_shares(out, shard.of)
            if not is_store(out):
                clear_leftovers(out)  # once a plan is there, other processes may be writing parts
            plan, resumed = open_plan(job, overwrite=False, stop=stop, check=check_store)
            if is_complete(out):
                return EncodeReport("complete", time.perf_counter() - began, 0, plan)
        parts = all_parts(plan)
        own = parts[len(parts) * max(shard.number - 1, 0) // shard.of : len(parts) * shard.number // shard.of]
        finished = finished_parts(out, plan)
        missing = [part for part in own if part not in finished]
        job.progress.step(f"encoding share {shard.number} of {shard.of}", len(own), len(own) - len(missing), "parts")

        def is_stopped() -> bool:
            check_lock()
            return stop()

        tokens = 0
        for record in serial_parts(job.encoder, is_stopped, check=check_lock)(out, plan, missing, NoProgress()):
            job.progress.advance(1)
            tokens += record.tokens
        with _store_lock(job, stop) as check_store:
            if is_complete(out):
                manifest = open_plan(job, overwrite=False).plan
                outcome = ("resumed" if resumed else "encoded") if missing else "complete"  # another share committed it
                return EncodeReport(outcome, time.perf_counter() - began, tokens, manifest)
            # The lock is held: most shares see from the number of records that others have work left.
            records = finished_parts(out, plan) if len(listed(out / PARTS)) >= len(parts) else {}
            if len(records) < len(parts):
                return EncodeReport("share", time.perf_counter() - began, tokens, plan)
            check_store()
            clear_leftovers(out)  # all parts are finished, and there are no other shares: no process writes any more
            manifest = commit(out, plan, job.device or str(job.encoder.device), records)
        return EncodeReport("resumed" if resumed else "encoded", time.perf_counter() - began, tokens, manifest)


@contextmanager
def _store_lock(job: Job, stop: Callable[[], bool]) -> Iterator[Callable[[], None]]:
    """Hold the lock of the whole store; wait while another process plans or commits. Yields the lock's check."""
    reported = False
    with ExitStack() as stack:
        while True:
            try:
                check = stack.enter_context(only_encoder(job.out, beside_shares=True))
                break
            except HeldError as error:
                if not reported:
                    job.progress.say(f"waiting for {error.received}, which plans or commits")
                reported = True
                if stop():
                    raise StoppedError(
                        f"stopped while another process had {job.out}", remedy="run the same command again"
                    ) from None
                time.sleep(WAIT_SECONDS)
        yield check
