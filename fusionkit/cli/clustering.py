"""The options that say where work is done, for ``encode`` and ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from fusionkit.cluster import ClusterSettings
    from fusionkit.cluster.elsewhere import Elsewhere
    from fusionkit.fit.hands import Crew

Command = TypeVar("Command", bound=Callable[..., Any])

OPTIONS = (
    click.option("--cluster", metavar="local|slurm|tcp://HOST:PORT", help="Do the work by workers of a Dask cluster."),
    click.option("--cluster-config", type=click.Path(path_type=Path), help="YAML file with the cluster's settings."),
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


def elsewhere_by(settings: ClusterSettings, device: str) -> AbstractContextManager[Elsewhere]:
    """An open cluster for ``encode``, as :func:`fusionkit.cluster.elsewhere.open_elsewhere` gives it."""
    from fusionkit.cluster.elsewhere import open_elsewhere

    return open_elsewhere(settings, device)


@contextmanager
def crew_by(settings: ClusterSettings, note: Callable[[str], None]) -> Iterator[Crew]:
    """An open cluster for ``fit``, whose heads are trained on CPUs.

    Args:
        note: told how many workers there are.
    """
    from fusionkit.cluster import open_cluster
    from fusionkit.cluster.hands import ClusterCrew

    cpus = replace(settings, gpus=0) if settings.gpus is None else settings
    with open_cluster(cpus) as cluster:
        yield ClusterCrew(cluster, cpus, note)
