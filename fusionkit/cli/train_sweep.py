"""A sweep as commands train it: watched by a table, logged, shared with a cluster's workers, ended by SIGTERM."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusionkit.cli.cluster_options import cluster_for
from fusionkit.cli.logged_progress import LoggedProgress
from fusionkit.cli.sweep_table import SweepTable
from fusionkit.cli.worker_options import stopped_by_sigterm
from fusionkit.dataset.mixture import Mix
from fusionkit.fit import RunsFolder, fit
from fusionkit.fit.sweep.blocks import Sweep
from fusionkit.logs import Logs
from fusionkit.store import Store

if TYPE_CHECKING:
    from fusionkit.cluster import ClusterSettings


def train(
    store: Store | Mix,
    sweep: Sweep,
    runs: Path,
    *,
    workers: int | None,
    retry_failed: bool,
    settings: ClusterSettings | None,
    log_to: Sequence[str],
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """Train what is missing; the records of all of the sweep's runs.

    Args:
        settings: of the cluster that does it; None is this machine. log_to: names of logs. device: where heads are
            trained.
    """
    folder = RunsFolder(runs)
    there = [record for spec in sweep.specs if (record := folder.record(spec)) is not None]
    there = [record for record in there if not (retry_failed and record["status"] == "failed")]
    with stopped_by_sigterm(), SweepTable(sweep.specs, there) as progress, ExitStack() as stack:
        left = len(there) < len(sweep.specs)  # where nothing is, no worker is asked for
        cluster = stack.enter_context(cluster_for(settings, progress.note)) if settings is not None and left else None
        logs = Logs(log_to, runs, progress.say)
        logs.catch_up(there)
        records = fit(
            store, sweep.specs, folder, LoggedProgress(progress, logs), sweep.starts, sweep.draws, workers,
            retry_failed, cluster, device,
        )  # fmt: skip
        logs.catch_up(records)  # what another process kept just before this one asked
        logs.close()
    return records
