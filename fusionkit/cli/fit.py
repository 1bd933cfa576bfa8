"""``fusionkit fit``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from fusionkit.cli.clustering import cluster_options, crew_by, given_cluster, job_of_worker, on_cpus
from fusionkit.cli.completing import folders
from fusionkit.cli.console import FOLDER, JSON_OPTION, out, print_json
from fusionkit.cli.sweeping import given_sweep, stores_or_file, sweep_options
from fusionkit.cli.working import print_forecast, stopped_by_sigterm, working_options


@click.command()
@click.argument("stores", nargs=-1, metavar="STORE[:SHARE]...", callback=stores_or_file, shell_complete=folders)
@click.option("--out", "runs", required=True, type=FOLDER, help="Folder that keeps the runs.")
@sweep_options
@working_options
@cluster_options
@JSON_OPTION
@click.pass_context
def fit(
    context: click.Context,
    /,
    stores: tuple[str, ...],
    runs: Path,
    threads: int,
    workers: int | None,
    retry_failed: bool,
    log_to: tuple[str, ...],
    dry_run: bool,
    cluster: str | None,
    cluster_config: Path | None,
    print_job: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Train late-fusion heads over STORE: every combination of what is given several times.

    The best epoch on validation is kept and scored once on test. Runs that are in the folder already are not
    trained again, killed or stopped it goes on where it was, and several of this command on one folder share the runs.

    Several stores are trained on together, of each all of train or a share of it: en.store de.store:5% (or
    de.store:200 for 200 examples). The last one named chooses the epoch and is scored, unless --evaluate-on says
    otherwise: given several times, the first chooses and each is scored.
    """
    import torch

    from fusionkit.fit import RunsFolder, foresee
    from fusionkit.logs import Logs, check_logs

    # Two threads on products this small win little, and lose much as soon as anything else runs.
    torch.set_num_threads(threads)
    given = given_sweep(context, stores)
    settings = given_cluster(cluster, cluster_config or given.cluster_file, workers=workers)
    if print_job:
        click.echo(job_of_worker(settings and on_cpus(settings)), nl=False)
        return
    sweep, folder = given.sweep, RunsFolder(runs)
    check_logs(log_to)
    if dry_run:
        forecast = foresee(given.store, sweep.specs, folder, sweep.starts, sweep.draws, workers, retry_failed)
        print_forecast(*forecast, as_json)
        return
    from fusionkit.cli.live import SweepTable
    from fusionkit.cli.logged import Logged
    from fusionkit.fit import fit as run_fit

    there = [record for spec in sweep.specs if (record := folder.record(spec)) is not None]
    there = [record for record in there if not (retry_failed and record["status"] == "failed")]
    with stopped_by_sigterm(), SweepTable(sweep.specs, there) as progress, ExitStack() as stack:
        left = len(there) < len(sweep.specs)  # where nothing is, no worker is asked for
        crew = stack.enter_context(crew_by(settings, progress.note)) if settings is not None and left else None
        logs = Logs(log_to, runs, progress.say)
        logs.catch_up(there)
        watcher = Logged(progress, logs)
        records = run_fit(
            given.store, sweep.specs, folder, watcher, sweep.starts, sweep.draws, workers, retry_failed, crew
        )
        logs.catch_up(records)  # what another process kept just before this one asked
        logs.close()
    _print(records, runs, as_json)


def _print(records: list[dict[str, Any]], runs: Path, as_json: bool) -> None:
    import pandas as pd

    from fusionkit.cli.summary import summary_table
    from fusionkit.fit import summarise
    from fusionkit.fit.results import flat_record, flat_tests

    if as_json:
        print_json([flat_record(record) for record in records])
        return
    out().print(summary_table(summarise(pd.DataFrame([row for each in records for row in flat_tests(each)]))))
    out().print(f"kept in {runs}; `fusionkit results {runs}` shows all of it")
