"""``fusionkit fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fusionkit.cli.cluster_options import cluster_options, given_cluster, job_of_worker, on_cpus
from fusionkit.cli.completion import folders
from fusionkit.cli.console import FOLDER, JSON_OPTION, out, print_json
from fusionkit.cli.sweep_options import given_sweep, stores_or_file, sweep_options
from fusionkit.cli.worker_options import print_forecast, working_options
from fusionkit.errors import FusionkitError, UsageError


@click.command()
@click.argument("stores", nargs=-1, metavar="STORE[:SHARE]...", callback=stores_or_file, shell_complete=folders)
@click.option("--out", "runs", required=True, type=FOLDER, help="Folder that keeps the runs.")
@sweep_options
@click.option("--device", default="auto", show_default=True, help="Where heads are trained: auto, cpu or cuda:0.")
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

    from fusionkit.fit import RunsFolder, forecast
    from fusionkit.logs import check_logs

    # Two threads on products this small win little, and lose much as soon as anything else runs.
    torch.set_num_threads(threads)
    given = given_sweep(context, stores)
    settings = given_cluster(cluster, cluster_config or given.cluster_file, workers=workers)
    if settings is not None and device == "auto":
        device = "cpu"
    if settings is not None and device != "cpu":
        raise UsageError(
            "the workers of a cluster train heads on their CPUs",
            expected="--device cpu",
            received=f"--device {device} beside --cluster",
            remedy="leave one of them out",
        )
    if print_job:
        click.echo(job_of_worker(settings and on_cpus(settings)), nl=False)
        return
    sweep = given.sweep
    check_logs(log_to)
    if dry_run:
        found = forecast(
            given.store, sweep.specs, RunsFolder(runs), sweep.starts, sweep.draws, workers, retry_failed, device
        )
        print_forecast(*found, as_json)
        return
    from fusionkit.cli.train_sweep import train

    records = train(
        given.store, sweep, runs, workers=workers, retry_failed=retry_failed, settings=settings, log_to=log_to,
        device=device,
    )  # fmt: skip
    _print(records, runs, as_json)
    if records and all(record["status"] == "failed" for record in records):  # what comes next would find no head
        raise FusionkitError(
            "the run failed" if len(records) == 1 else f"all {len(records):,} runs failed",
            received=records[0]["error"].splitlines()[0],
            remedy=f"`fusionkit status {runs}` lists them; --retry-failed tries them again",
        )


def _print(records: list[dict[str, Any]], runs: Path, as_json: bool) -> None:
    import pandas as pd

    from fusionkit.cli.summary_table import summary_table
    from fusionkit.fit import summarise
    from fusionkit.runs.folder import flat_record, flat_tests

    if as_json:
        print_json([flat_record(record) for record in records])
        return
    out().print(summary_table(summarise(pd.DataFrame([row for each in records for row in flat_tests(each)]))))
    out().print(f"kept in {runs}; `fusionkit results {runs}` shows all of it")
