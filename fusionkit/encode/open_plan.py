"""The first step: the plan of a store, newly written or taken over from an interrupted call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fusionkit.encode.job import Job
from fusionkit.encode.lock import refuse_held
from fusionkit.encode.plan import refuse_over_budget, write_plan
from fusionkit.encode.publish import has_leftovers, refuse_strangers
from fusionkit.errors import StoreError
from fusionkit.io.object_storage import UnansweredError
from fusionkit.io.places import Place, UnreadableError, place_errors, remove
from fusionkit.plural import counted
from fusionkit.specs import MASKED
from fusionkit.store.manifest import agreed_layout, checked, read_plan, refuse_other
from fusionkit.store.presence import MANIFEST, PLAN, is_complete, is_store
from fusionkit.store.verify import refuse_changed_files


class OpenedPlan(NamedTuple):
    """The plan of a store, or its manifest if the store is complete; ``resumed``: whether an earlier call wrote it."""

    plan: dict[str, Any]
    resumed: bool


def open_plan(
    job: Job, overwrite: bool, stop: Callable[[], bool] = lambda: False, check: Callable[[], object] = lambda: None
) -> OpenedPlan:
    """The plan of a job's store; the caller holds the store's lock.

    Args:
        stop, check: as in :func:`fusionkit.encode.plan.write_plan`.

    Raises:
        IdentityError: the place holds a store with another identity or compression. UsageError: the finished store
            would be larger than the job's budget, or a store to be replaced has other files in its folder.
        StoppedError: ``stop`` returned True while a new plan was made.
    """
    out = job.out
    plan = _found(job, overwrite)
    resumed = plan is not None
    if plan is None:
        job.progress.step("tokenising", sum(table.num_rows for table in job.source.splits.values()), 0, "examples")
        write_plan(job, stop, check)
        plan = read_plan(out)
    elif is_complete(out):
        remove(out / PLAN)
        return OpenedPlan(plan, resumed)
    _report_losses(job, plan)
    return OpenedPlan(plan, resumed)


def refuse_taken(job: Job, overwrite: bool) -> None:
    """Raise what an encode of the job would raise for what lies at its place; nothing is locked or changed.

    Raises:
        HeldError: another process encodes into the store. Others as :func:`open_plan`, but a store that is yet to be
            planned may turn out larger than the budget.
    """
    with place_errors(job.out):
        refuse_held(job.out)
        _found(job, overwrite)


def _found(job: Job, overwrite: bool) -> dict[str, Any] | None:
    """The plan that the job goes on with, or the manifest if the store is complete; None if it plans the store anew.
    Errors as :func:`open_plan`.
    """
    out, wanted = job.out, _requested(job)
    if not is_store(out):
        return None
    if overwrite and not _is_begun(out, wanted):
        refuse_strangers(out)
        return None
    complete = is_complete(out)
    plan = checked(out / MANIFEST) if complete else read_plan(out)
    refuse_other(out, _request_of(plan), wanted)
    for split in plan["splits"]:
        agreed_layout(out, plan, split)
    if not complete:
        refuse_over_budget(out, plan, job.budget)
    return plan


def is_finished(job: Job) -> bool:
    """Whether the job's store is complete already, so that no worker need be started for it."""
    return _finished(job) is not None


def left_as_it_is(job: Job) -> dict[str, Any] | None:
    """The manifest of the job's store if it is complete and nothing in or beside it is to be removed or waited for;
    None otherwise, and for object storage. No lock is taken: such a store may lie where nothing can be written.

    Raises:
        StoreError: the store is damaged.
    """
    if not isinstance(job.out, Path):
        return None
    with place_errors(job.out):
        if (manifest := _finished(job)) is None or has_leftovers(job.out):
            return None
        for split in manifest["splits"]:
            agreed_layout(job.out, manifest, split)
    return manifest


def _finished(job: Job) -> dict[str, Any] | None:
    """The manifest of the job's store if it is complete, None otherwise."""
    with place_errors(job.out):
        if not is_complete(job.out):
            return None
        known = checked(job.out / MANIFEST)
    return known if _request_of(known) == _requested(job) else None


def _report_losses(job: Job, plan: dict[str, Any]) -> None:
    """Tell the user which texts are cut and which words or sub-tokens are masked."""
    for split, fields in plan["splits"].items():
        if fields["cut"]:
            job.progress.say(
                f"{split}: {counted(fields['cut'], 'text')} cut to {job.identity['max_length']} sub-tokens"
            )
        if plan["rows"] == MASKED:
            job.progress.say(f"{split}: {fields['rows']:,} of {counted(fields['tokens'], 'sub-token')} masked")
        if fields["masked"]:
            job.progress.say(
                f"{split}: {counted(fields['masked'], 'word')} without a sub-token (cut or empty): masked, not dropped"
            )


def _requested(job: Job) -> dict[str, Any]:
    """The identity and compression of a job, in the types that JSON gives back."""
    return _request_of({"identity": json.loads(json.dumps(job.identity)), "compression": job.spec.compress})


def _request_of(known: dict[str, Any]) -> dict[str, Any]:
    """The identity and compression that a plan or manifest records. A build of a package for another device,
    ``2.13.0+cpu``, is no other version.
    """
    versions = {name: number.partition("+")[0] for name, number in known["identity"]["versions"].items()}
    return {"pair_as": "one", **known["identity"], "versions": versions, "compression": known["compression"]}


def _is_begun(out: Place, wanted: dict[str, Any]) -> bool:
    """Whether an unfinished, undamaged store of this request is there; an interrupted --overwrite goes on with it."""
    if is_complete(out):
        return False
    try:
        plan = read_plan(out)
        if isinstance(out, Path):
            refuse_changed_files(out, plan["files"])
        for split in plan["splits"]:
            agreed_layout(out, plan, split)
    except (UnansweredError, UnreadableError):
        raise
    except StoreError:
        return False
    return _request_of(plan) == wanted
