"""A share of a store's parts, for processes that know nothing of one another: the tasks of an array job.

    parts of share i of n: those from ⌊(i − 1)·p / n⌋ to ⌊i·p / n⌋ of the plan's p parts, in their order

The first to come plans while the others wait; each encodes its own parts; whoever finds all of them there writes the
manifest. Share 0 has no parts: it plans, and commits where all is done.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from fusionkit.encode.job import EncodeReport, Job, NoProgress, commit, planned, serial_parts
from fusionkit.encode.lock import HeldError, only_encoder
from fusionkit.encode.parts import all_parts, finished_parts
from fusionkit.encode.publish import clear_leftovers
from fusionkit.errors import StoppedError, UsageError
from fusionkit.places import place_errors
from fusionkit.store.manifest import is_complete, is_store

WAIT_SECONDS = 0.5


class Shard(NamedTuple):
    """Share ``number`` of ``of``: 1 to ``of``, or 0 for the plan alone."""

    number: int
    of: int


def parse_shard(text: str) -> Shard:
    """``3/16`` as the command line has it.

    Raises:
        UsageError: it is none.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    share = Shard(int(found[1]), int(found[2])) if found else Shard(-1, 0)
    if not 0 <= share.number <= share.of or share.of < 1:
        raise UsageError(
            "no share of the parts", expected="I/N with I from 1 to N, or 0/N for the plan alone", received=text
        )
    return share


def encode_shard(job: Job, share: Shard, stop: Callable[[], bool] = lambda: False) -> EncodeReport:
    """Encode one share of the parts.

    Returns:
        with the outcome ``share``, and the plan for a manifest, where parts of other shares are still missing; else as
        :func:`fusionkit.encode.encode`.

    Raises:
        HeldError: another process is at this share. Otherwise as :func:`fusionkit.encode.encode`.
    """
    out, began = job.out, time.perf_counter()
    with place_errors(out), only_encoder(out, f"{share.number}-of-{share.of}") as ours:
        with _store_of(job, stop):
            if not is_store(out):
                clear_leftovers(out)  # later, others may be at work here
            plan, resumed = planned(job, overwrite=False)
            if is_complete(out):
                return EncodeReport("complete", time.perf_counter() - began, 0, plan)
        parts = all_parts(plan)
        first, last = (len(parts) * at // share.of for at in (max(share.number - 1, 0), share.number))
        done, mine = finished_parts(out, plan), parts[first:last]
        missing = [part for part in mine if part not in done]
        job.watch.step(f"encoding share {share.number} of {share.of}", len(mine), len(mine) - len(missing), "parts")

        def stops() -> bool:
            ours()
            return stop()

        tokens = 0
        for record in serial_parts(job.encoder, stops)(out, plan, missing, NoProgress()):
            job.watch.advance(1)
            tokens += record.tokens
        with _store_of(job, stop):
            if is_complete(out):
                return EncodeReport("complete", time.perf_counter() - began, tokens, planned(job, False)[0])
            if finished_parts(out, plan).keys() < set(parts):
                return EncodeReport("share", time.perf_counter() - began, tokens, plan)
            clear_leftovers(out)  # all parts are there: nobody writes any more
            manifest = commit(out, plan, str(job.encoder.device))
        return EncodeReport("resumed" if resumed else "encoded", time.perf_counter() - began, tokens, manifest)


@contextmanager
def _store_of(job: Job, stop: Callable[[], bool]) -> Iterator[None]:
    """The lock of the whole store, waited for: others plan or commit for a while."""
    told = False
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(only_encoder(job.out, beside_shares=True))
                break
            except HeldError as error:
                if not told:
                    job.watch.say(f"waiting for {error.received}, which plans or commits")
                told = True
                if stop():
                    raise StoppedError(
                        f"stopped while another process had {job.out}", remedy="run the same command again"
                    ) from None
                time.sleep(WAIT_SECONDS)
        yield
