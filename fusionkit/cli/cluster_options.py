"""The options that say where work is done, for ``encode`` and ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fusionkit.cli.completion import names
from fusionkit.errors import UsageError

if TYPE_CHECKING:
    from fusionkit.cluster import ClusterSettings
    from fusionkit.cluster.encode_workers import EncodeWorkers
    from fusionkit.fit.executor.worker_pool import ExecutorFactory
    from fusionkit.study import Study

Command = TypeVar("Command", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--cluster",
        metavar="local|slurm|tcp://HOST:PORT",
        shell_complete=names(("local", "slurm")),
        help="Do the work by workers of a Dask cluster.",
    ),
    click.option("--cluster-config", type=click.Path(path_type=Path), help="YAML file with the cluster's settings."),
    click.option("--print-job", is_flag=True, help="Print the Slurm job that a worker would be, and start nothing."),
)


def cluster_options(command: Command) -> Command:
    """Add the options above, in their order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def given_cluster(kind: str | None, config: Path | None, **given: Any) -> ClusterSettings | None:
    """The settings that flags and file make together; None where neither asks for a cluster.

    Raises:
        UsageError: a key or value is wrong.
    """
    if kind is None and config is None:
        return None
    from fusionkit.cluster import read_settings  # it loads Dask

    return read_settings(config, kind=kind, **given)


def cluster_of_study(study: Study, kind: str | None, config: Path | None, **given: Any) -> ClusterSettings | None:
    """The same, where a study may have settings too: a file that is named wins over them.

    Raises:
        UsageError: a key or value is wrong.
    """
    block = study.value.get("cluster")
    if config is not None or block is None:
        return given_cluster(kind, config, **given)
    from fusionkit.cluster.settings import settings_of

    if not isinstance(block, dict):
        raise UsageError(f"{study.path}: 'cluster' is a block", expected="settings below it", received=repr(block))
    flags = {name: value for name, value in {"kind": kind, **given}.items() if value is not None}
    return settings_of({**block, **flags}, study.path)


def job_of_worker(settings: ClusterSettings | None) -> str:
    """The script that ``--print-job`` shows.

    Raises:
        UsageError: no Slurm is asked for.
    """
    if settings is None or settings.kind != "slurm":
        raise UsageError("--print-job prints a Slurm job", remedy="add --cluster slurm")
    from fusionkit.cluster.slurm import printed_job

    return printed_job(settings)


def workers_of(settings: ClusterSettings, device: str) -> AbstractContextManager[EncodeWorkers]:
    """An open cluster for ``encode``, as :func:`fusionkit.cluster.encode_workers.open_encode_workers` gives it."""
    from fusionkit.cluster.encode_workers import open_encode_workers

    return open_encode_workers(settings, device)


@contextmanager
def cluster_for(settings: ClusterSettings, note: Callable[[str], None]) -> Iterator[ExecutorFactory]:
    """An open cluster for ``fit``, whose heads are trained on CPUs.

    Args:
        note: told how many workers there are.
    """
    from fusionkit.cluster import open_cluster
    from fusionkit.cluster.executor import ClusterExecutorFactory

    cpus = on_cpus(settings)
    with open_cluster(cpus) as cluster:
        yield ClusterExecutorFactory(cluster, cpus, note)


def on_cpus(settings: ClusterSettings) -> ClusterSettings:
    """Settings for work that asks for no GPU by itself."""
    return replace(settings, gpus=0) if settings.gpus is None else settings
