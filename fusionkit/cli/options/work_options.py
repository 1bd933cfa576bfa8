"""The options that say where the work is done: processes, threads and logs of ``fit`` and ``run``, and a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusionkit.cli.options.completion import names
from fusionkit.cli.options.flags import with_all
from fusionkit.errors import UsageError
from fusionkit.names import LOGS

if TYPE_CHECKING:
    from fusionkit.cluster import ClusterSettings
    from fusionkit.study import Study


class WorkersType(click.ParamType[int | None]):
    """A number of processes; ``auto`` is None."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value is None or value == "auto":
            return None
        if isinstance(value, int):
            return value
        if not value.isdecimal() or int(value) < 1:
            self.fail(f"{value!r} is neither 'auto' nor a number of processes from 1 on", param, ctx)
        return int(value)


class SaveEveryType(click.ParamType[str]):
    """A number of steps, or minutes."""

    name = "N|Nm"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from fusionkit.fit.executor.through_encoder import StateFile

        StateFile.of(Path(), value)  # raises UsageError
        return str(value)


working_options = with_all([
    click.option(
        "--threads", default=1, show_default=True, type=click.IntRange(min=1), help="CPU threads per process."
    ),
    click.option("--workers", default="auto", show_default=True, type=WorkersType(),
                 help="Number of processes; auto: one per core, if the work is worth starting them; 1: this process."),
    click.option("--save-every", default="2m", show_default=True, type=SaveEveryType(), metavar="N|Nm",
                 help="Save the state of a run that trains through the encoder every N steps or minutes."),
    click.option("--retry-failed", is_flag=True, help="Train failed runs again."),
    click.option("--log-to", multiple=True, type=click.Choice(LOGS),
                 help="Log finished runs there too, earlier ones included; several times."),
    click.option("--dry-run", is_flag=True, help="Print what is to be done, with its time and memory, and end."),
])  # fmt: skip
cluster_options = with_all([
    click.option("--cluster", metavar="local|slurm|tcp://HOST:PORT", shell_complete=names(("local", "slurm")),
                 help="Run on the workers of a Dask cluster."),
    click.option("--cluster-config", type=click.Path(path_type=Path), help="YAML file with the cluster's settings."),
    click.option("--print-job", is_flag=True, help="Print the Slurm job of a worker, and start nothing."),
])  # fmt: skip


def given_cluster(
    kind: str | None, config: Path | None, device: str, workers: int | None, study: Study | None = None
) -> ClusterSettings | None:
    """The cluster's settings for work on a device: from the flags and the file that they name, or else from the study.
    None if nothing asks for a cluster.

    Raises:
        UsageError: a wrong setting, or a device that no worker has.
    """
    if study is not None and config is None and "cluster" in study.written.value:
        from fusionkit.cluster.settings import settings_of  # loads Dask

        return settings_of(study.written, kind=kind, workers=workers).on(device)
    if kind is None and config is None:
        return None
    from fusionkit.cluster import read_settings

    return read_settings(config, kind=kind, workers=workers).on(device)


def print_slurm_job(settings: ClusterSettings | None) -> None:
    """Print the script of ``--print-job``, which starts a worker; UsageError if the cluster is not Slurm's."""
    if settings is None or settings.kind != "slurm":
        raise UsageError("--print-job prints a Slurm job", remedy="add --cluster slurm")
    from fusionkit.cluster.slurm import printed_job

    click.echo(printed_job(settings), nl=False)
