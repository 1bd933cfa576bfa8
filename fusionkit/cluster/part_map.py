"""``encode``'s parts over a cluster: this process plans, holds the lock and commits; workers write the parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fusionkit.cluster.protocol import Cluster, workers_text
from fusionkit.cluster.settings import ClusterSettings
from fusionkit.cluster.task_map import ATTEMPTS, FailedItem, each_done
from fusionkit.encode.batches import Part
from fusionkit.encode.job import EncodeProgress
from fusionkit.encode.part_records import PartRecord, clear_failure, failures, record_failure
from fusionkit.encode.pipeline import PartsRunner
from fusionkit.encode.publish import clear_leftovers
from fusionkit.encode.worker import UnfitWorkerError, do_part, worker_job
from fusionkit.encoder import Encoder
from fusionkit.errors import FusionkitError, StoppedError, UsageError, first_line
from fusionkit.io.object_storage import UnansweredError
from fusionkit.io.places import Place
from fusionkit.plural import counted
from fusionkit.printable import as_word
from fusionkit.store.layout import part_path


def cluster_parts(
    cluster: Cluster,
    encoder: Encoder,
    settings: ClusterSettings,
    *,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda _: None,
) -> PartsRunner:
    """The map over parts for :func:`fusionkit.encode.encode`.

    Args:
        encoder: workers load it too. stop: called several times a second; True ends the work at once.
        note: called with the pace and the number of workers.

    Raises:
        FusionkitError: some parts failed three times. It is raised when all others are done, with the class of the
            first error, or at once if no part could be done.
        StoppedError: ``stop`` returned True.
    """

    def run(store: Place, plan: dict[str, Any], parts: list[Part], watch: EncodeProgress) -> Iterator[PartRecord]:
        if not parts:
            return
        assert encoder.loading is not None, "an encoder that no other process can load"
        job = worker_job(store, plan, encoder.loading, settings.threads)
        aside: list[FailedItem[Part]] = []
        left, tokens, began = len(parts), 0, 0.0
        failed_before = {Part(each["split"], each["chunk"]) for each in failures(store)}

        def set_aside(one: FailedItem[Part]) -> None:
            aside.append(one)
            record_failure(store, one.item, one.error, one.attempts)
            watch.say(
                f"{name_of(one.item)} failed {counted(one.attempts, 'time')} and is set aside: {_first(one.error)}"
            )

        def tick() -> None:
            pace = f"{tokens / max(time.monotonic() - began, 1e-9):,.0f} sub-tokens/s, " if tokens else ""
            note(f"{pace}{workers_text(cluster)}")
            if stop():
                raise StoppedError(
                    f"stopped with {left} of {counted(len(parts), 'part')} of {store} to do",
                    remedy="run the same command again: finished parts are kept",
                )

        done = each_done(
            cluster,
            partial(do_part, job),
            parts,
            on_aside=set_aside,
            tick=tick,
            hopeless=_would_meet_all,
            start_timeout=settings.start_timeout,
        )
        for part, values in _told(done, store):
            record = PartRecord(**values)
            left -= 1
            if part in failed_before:
                clear_failure(store, part)
            if began:
                tokens += record.tokens
            else:  # the first part only sets the clock, as workers load their encoders before it
                began = time.monotonic()
            watch.advance(record.tokens)
            yield record
        clear_leftovers(store)  # of workers that died while they wrote a file
        if aside:
            raise _failed(store, aside, len(parts))

    return run


def _told(done: Iterator[tuple[Part, Any]], store: Place) -> Iterator[tuple[Part, Any]]:
    """The items of ``done``. An error of a library, like that of workers that the kernel kills, becomes one of ours."""
    try:
        yield from done
    except FusionkitError:
        raise
    except Exception as error:
        raise FusionkitError(
            f"encoding {store} on the cluster failed",
            received=_first(error),
            remedy="see the workers' output; if they were killed, give them more memory. Then run the same command "
            "again: finished parts are kept",
        ) from error


def name_of(part: Part) -> str:
    """``train-00003``, as its record is named."""
    return part_path(Path(), part.split, part.chunk).stem


def _would_meet_all(error: Exception, attempt: int) -> bool:
    """Whether an error would meet all other parts too: wrong usage, a full disk (a plain FusionkitError), a place that
    does not answer; a worker that is unfit, at the last attempt: others may be fit.
    """
    if isinstance(error, UnfitWorkerError):
        return attempt == ATTEMPTS
    return isinstance(error, (UsageError, UnansweredError)) or type(error) is FusionkitError


def _failed(store: Place, aside: list[FailedItem[Part]], total: int) -> FusionkitError:
    first = aside[0].error
    names = ", ".join(name_of(one.item) for one in aside[:8]) + (" …" if len(aside) > 8 else "")
    kind = type(first) if isinstance(first, FusionkitError) else FusionkitError
    again = f"run the same command again: the others are kept; `fusionkit status {as_word(store)}` shows each error"
    return kind(
        f"{len(aside)} of {counted(total, 'part')} of {store} failed: {names}",
        received=_first(first),
        remedy=f"{first.remedy}; or {again}" if isinstance(first, FusionkitError) and first.remedy else again,
    )


def _first(error: Exception) -> str:
    return first_line(error, kind=not isinstance(error, FusionkitError))
