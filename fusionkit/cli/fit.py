"""``fusionkit fit``."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusionkit.cli.console import FOLDER, JSON_OPTION, clock, log, out, print_json, table
from fusionkit.cli.options.completion import folders
from fusionkit.cli.options.sweep_options import given_sweep, stores_or_file, sweep_options
from fusionkit.cli.options.work_options import cluster_options, given_cluster, print_slurm_job, working_options
from fusionkit.errors import FusionkitError, UsageError
from fusionkit.lazy import uncollected
from fusionkit.plural import counted
from fusionkit.printable import as_word

if TYPE_CHECKING:
    from fusionkit.cli.commands import CliCommands
    from fusionkit.dataset.stores import Stores
    from fusionkit.fit.executor.estimate import Forecast
    from fusionkit.fit.sweep.blocks import Sweep


@click.command()
@click.argument("stores", nargs=-1, metavar="STORE[:SHARE]...", callback=stores_or_file, shell_complete=folders)
@click.option("--out", "runs", required=True, type=FOLDER, help="Folder that keeps the runs.")
@sweep_options
@click.option("--device", default="auto", show_default=True, help="Where heads are trained: auto, cpu or cuda:0.")
@click.option("--trust-remote-code", is_flag=True, help="Let a hub encoder that is trained run its own Python code.")
@working_options
@cluster_options
@JSON_OPTION
@click.pass_context
def fit(
    context: click.Context,
    /,
    stores: tuple[str, ...],
    runs: Path,
    device: str,
    trust_remote_code: bool,
    threads: int,
    workers: int | None,
    save_every: str,
    retry_failed: bool,
    log_to: tuple[str, ...],
    dry_run: bool,
    cluster: str | None,
    cluster_config: Path | None,
    print_job: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Train heads over STORE: a run for every combination of the options that are given several times.

    Each run keeps its best epoch on validation and is scored once on test. Runs that --out has already are not
    trained again, so a stopped or killed command goes on when it is run again. Several commands on one folder share
    its runs.

    Several stores are trained on together, each whole or by a share: en.store de.store:5% (or de.store:200 for 200
    examples). The last one chooses the epoch and is scored. --evaluate-on names others: the first of them chooses the
    epoch, each is scored.
    """
    from fusionkit.logs import check_logs
    from fusionkit.runs.folder import RunsFolder
    from fusionkit.runs.record import all_failed, first_error, is_floor

    RunsFolder(runs).claim()
    check_logs(log_to)
    store, sweep, file = given_sweep(context, stores)
    settings = given_cluster(cluster, cluster_config or file, device, workers)
    if print_job:
        print_slurm_job(settings)
        return
    with uncollected(for_good=True):
        from fusionkit.cli.commands import CliCommands

    commands = CliCommands(settings, workers, threads, device, retry_failed, log_to, trust_remote_code, save_every)
    if dry_run:
        if not ("TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"):  # one process prints
            print_forecast(*commands.forecast(store, sweep, runs), as_json)
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:
        records = _train_by_torchrun(commands, store, sweep, runs)
    else:
        records = commands.train(store, sweep, runs)
    if records is None:
        return
    _print(records, runs, as_json)
    if all_failed(records):  # a command that follows would find no head
        heads = [record for record in records if not is_floor(record)]
        raise FusionkitError(
            "the run failed" if len(heads) == 1 else f"all {len(heads):,} runs failed",
            received=first_error(heads),
            remedy=f"`fusionkit status {as_word(runs)}` lists them; --retry-failed tries them again",
        )


def _train_by_torchrun(commands: CliCommands, store: Stores, sweep: Sweep, runs: Path) -> list[dict[str, Any]] | None:
    """Train one run after the other by all processes of torchrun; returns None in all but the first process."""
    import torch

    from fusionkit.fit.executor.context import SweepContext
    from fusionkit.machine.devices import device_of
    from fusionkit.machine.memory import keep_freed_memory
    from fusionkit.tuning.ranks import joined
    from fusionkit.tuning.trainer import follow

    if commands.settings is not None or (commands.workers or 1) > 1 or commands.device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            "torchrun starts the processes that share a run, and gives each its device",
            expected="no --cluster, no --workers, --device auto, cpu or cuda",
            remedy="leave them out, or torchrun",
        )
    if not any(spec.is_alone for spec in sweep.specs):
        raise UsageError(
            "torchrun shares a run that trains through the encoder, and these runs are frozen",
            remedy="start fusionkit without torchrun; --workers and --cluster share frozen runs",
        )
    with joined(commands.device) as (ranks, device):
        torch.set_num_threads(commands.threads)  # each step waits for the slowest
        keep_freed_memory()
        if ranks.rank:
            draws = {draw.digest: draw.ids for draw in sweep.draws}
            trusted = commands.trust_remote_code
            follow(SweepContext(store, sweep.starts, draws, device=device_of(device), trust_remote_code=trusted))
            return None
        records = replace(commands, device=device, workers=1).train(store, sweep, runs)
        ranks.announce(None)  # tells the others to end; after an error torchrun ends them
    return records


def _print(records: list[dict[str, Any]], runs: Path, as_json: bool) -> None:
    import pandas as pd

    from fusionkit.cli.tables.summary_table import summary_table
    from fusionkit.fit import RunGroups, summarise
    from fusionkit.runs.example_scores import ExampleScores
    from fusionkit.runs.folder import RunsFolder
    from fusionkit.runs.probing import plain_runs, with_probing
    from fusionkit.runs.record import flat_record, flat_tests
    from fusionkit.runs.summary import NOTES

    if as_json:
        print_json([flat_record(record) for record in records])
        return
    ended = [record for record in records if record["status"] != "stopped"]
    if ended:
        every = pd.DataFrame([row for each in ended for row in flat_tests(each)])
        groups = RunGroups(plain_runs(every), answers=ExampleScores(RunsFolder(runs).answers))
        summary = with_probing(summarise(groups), groups, every)
        out().print(summary_table(summary))
        for note in summary.attrs[NOTES]:
            out().print(note)
    if stopped := len(records) - len(ended):
        out().print(
            f"{counted(stopped, 'run')} stopped early by --halving: others of another rate or layers were better"
        )
    out().print(f"kept in {runs}; `fusionkit results {as_word(runs)}` shows all of it", soft_wrap=True)  # to be copied


def print_forecast(found: Forecast, notes: list[str], as_json: bool) -> None:
    from fusionkit.fit.executor.estimate import SHOWN
    from fusionkit.tasks.joint import shown_tasks

    if as_json:
        print_json({**asdict(found), "notes": notes})
        return
    for note in notes:
        log().print(note)
    shown = [name for name in SHOWN if len({part[name] for part in found.parts}) > 1 or name in ("label", "fusion")]
    rows = []
    for part in found.parts:
        told = {**part, "label": shown_tasks(part["task"], part["label"])}
        kind = ["–" if told[name] is None else str(told[name]) for name in shown]
        rows.append([*kind, f"{part['runs']:,}", clock(part["seconds"])])
    if rows:
        columns = [*((name, "left") for name in shown), ("runs", "right"), ("one process", "right")]
        out().print(table(None, columns, rows))
    out().print(forecast_text(found))


def forecast_text(found: Forecast) -> str:
    """Lines with the finished runs, the runs that are left, time and memory, and how these were found."""
    left = found.runs - found.there
    told = f"{counted(found.runs, 'run')}: {found.there:,} there already, {left:,} to train"
    told += f" ({found.elsewhere:,} of them by another process just now)" if found.elsewhere else ""
    if not left:
        return told
    who = f"{found.workers} processes" if found.workers > 1 else "one process"
    sampled = f"all {found.kinds}" if found.sampled == found.kinds else f"{found.sampled} of {found.kinds}"
    return "\n".join(
        (
            f"{told} in {counted(found.units, 'unit')} by {who}",
            f"about {clock(found.seconds)}, if this machine stays as busy as it is now; about "
            f"{found.memory / 1e6:,.0f} MB of memory a process",
            f"estimated from counted operations; for {sampled} kinds of runs, from a few measured epochs or finished "
            "runs",
        )
    )
