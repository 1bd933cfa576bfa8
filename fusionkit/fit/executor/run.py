"""Train a sweep's missing runs in this process, in worker processes or on a cluster, and write each as it ends.

The steps: ``prepare`` finds and checks the missing runs; ``plan`` groups them into units (``units``), which are trained
together; ``scheduler`` gives unit after unit to an executor (``worker_pool``; ``cluster/executor``); a worker process
(``worker``) opens the stores again (``context``); ``unit_job`` claims the unit's runs, trains them (``fit/train/loop``)
and writes each with its record.
A sweep that is killed loses only the units in training; run again, it trains what is missing. Several processes on one
folder share the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import torch

from fusionkit.dataset.stores import Stores
from fusionkit.errors import UsageError
from fusionkit.fit.executor.context import Opening, opening_of
from fusionkit.fit.executor.cost import CostModel
from fusionkit.fit.executor.floors import keep_floors
from fusionkit.fit.executor.plan import Plan, plan
from fusionkit.fit.executor.prepare import Prepared, prepare
from fusionkit.fit.executor.scheduler import Schedule
from fusionkit.fit.executor.through_encoder import SAVE_EVERY
from fusionkit.fit.executor.unit_job import OnEvent
from fusionkit.fit.executor.worker_pool import Executor, ExecutorFactory, InProcessExecutor, WorkerPool
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.fit.progress import FitProgress
from fusionkit.fit.sweep.fixed_draws import FixedDraws
from fusionkit.io.locks import this_process
from fusionkit.machine.devices import device_of
from fusionkit.machine.memory import keep_freed_memory
from fusionkit.plural import counted
from fusionkit.runs.claims import Claims
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec


def fit(
    store: Stores,
    specs: Sequence[RunSpec],
    runs: RunsFolder,
    progress: FitProgress | None = None,
    starts: Sequence[TrainedRun] = (),
    draws: Sequence[FixedDraws] = (),
    workers: int | None = 1,
    retry_failed: bool = False,
    cluster: Callable[[], ExecutorFactory] | None = None,
    device: str = "cpu",
    halving: bool = False,
    save_every: str = SAVE_EVERY,
    trust_remote_code: bool = False,
) -> list[dict[str, Any]]:
    """Train every run that is not there yet, and write each as it ends. Wait for runs that another process trains.

    Args:
        progress: shows the sweep's progress; None shows nothing.
        starts: the finished runs that the specs start from. draws: the examples that the specs name by a digest.
        workers: the number of processes; 1 is this process alone, None as many as are worth starting.
        retry_failed: runs with a failed record are trained again.
        cluster: opens a cluster that trains the runs instead of this machine, with its own number of workers. Called
            once nothing of the sweep was refused, if runs are missing.
        device: where heads are trained: cpu, cuda, cuda:1, …; auto is a GPU if there is one. On a cluster the workers'
            devices count.
        halving: the worse half of the learning rates and choices of layers stops early, repeatedly
            (:mod:`fusionkit.fit.train.halving`). Without it, runs that were stopped before are trained to their end.
        save_every: how often a run that trains through the encoder saves its state, in steps (``500``) or minutes
            (``10m``).
        trust_remote_code: an encoder from the hub that is trained may run Python code of its own.

    Returns:
        the records of all the specs, in their order. UsageError if ``runs`` holds other files, a draw is larger than
        train, there is no such device, or several workers are to import a class of the script itself; FusionkitError
        for a full disk.
    """
    heads, floors = [spec for spec in specs if not spec.is_floor], [spec for spec in specs if spec.is_floor]
    progress = progress or FitProgress()
    how = (device_of(device), halving, save_every, trust_remote_code)
    prepared = prepare(store, heads, runs, starts, draws, retry_failed, *how)
    for note in prepared.notes:
        progress.say(note)
    if prepared.missing:
        elsewhere = None
        if cluster is None:
            chosen = plan(prepared, workers)
        else:
            _opening(prepared)  # raises before jobs are submitted
            elsewhere = cluster()
            chosen = plan(
                prepared, elsewhere.workers, elsewhere=True, sharers=elsewhere.sharers, memory=elsewhere.memory
            )
        for note in chosen.notes:
            progress.say(note)
        with closing(Claims(runs.path, this_process())) as claims:
            if not claims.locks_work():
                progress.say(f"{runs.path} lies on a file system without locks: start no second fit on this folder")
            _forget([*(prepared.failed if retry_failed else ()), *prepared.stopped], runs, claims)
            schedule = Schedule(chosen.units, chosen.widest, prepared.context, runs, claims, progress)
            executor, note = _executor(prepared, chosen, runs, elsewhere, schedule.on_event)
            if note:
                progress.say(note)
            cost = CostModel(prepared.context)
            epochs = {spec: cost.epochs(spec) for spec in prepared.missing}
            work = {spec.digest: number * cost.products(spec) for spec, number in epochs.items()}
            progress.begin(len(epochs), sum(epochs.values()), work)
            with closing(executor):
                schedule.work(executor)
    else:
        progress.begin(0, 0, {})
    keep_floors(floors, heads, prepared.context, runs, progress.run)
    runs.write_table()  # also when all were there: the sweep that made them may have been killed before its table
    return [record for spec in specs if (record := runs.record(spec)) is not None]


def _opening(prepared: Prepared) -> Opening:
    if (opening := opening_of(prepared.context)) is None:
        raise UsageError(
            "no other process can open these stores",
            expected="stores and runs at the places that they were opened from",
            remedy="leave --cluster out, or check the paths",
        )
    return opening


def _executor(
    prepared: Prepared, chosen: Plan, runs: RunsFolder, cluster: ExecutorFactory | None, on_event: OnEvent
) -> tuple[Executor, str]:
    """The executor of the units, and a note for the user."""
    units = f"share {counted(len(chosen.units), 'unit')} of runs"
    if cluster is not None:
        executor = cluster.executor({**_opening(prepared), "sharers": cluster.sharers}, runs, on_event)
        return executor, f"workers of the cluster, {cluster.workers} of them, {units}"
    if chosen.opening is None:
        keep_freed_memory()
        return InProcessExecutor(prepared.context, runs, on_event), ""
    opening = {**chosen.opening, "sharers": chosen.workers}
    pool = WorkerPool(chosen.workers, opening, runs, on_event, torch.get_num_threads())
    return pool, f"{chosen.workers} processes {units}" if chosen.workers > 1 else ""


def _forget(specs: Sequence[RunSpec], runs: RunsFolder, claims: Claims) -> None:
    """Remove the records of unfinished runs, so that they are trained again.

    Another process may have finished or claimed such a run since: then its record stays.
    """
    for spec in specs:
        if claims.take(spec.digest):
            record = runs.record(spec)
            if record is not None and record["status"] != "finished":
                runs.forget(spec)
            claims.release(spec.digest)
