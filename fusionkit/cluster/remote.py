"""Workers of a scheduler that runs already, ``dask scheduler`` or any other. Its owner replaces lost workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import Any

import dask
from distributed import Client

from fusionkit.cluster.dask_config import CONFIGURATION, security_of
from fusionkit.cluster.protocol import WorkerCount
from fusionkit.cluster.settings import ClusterSettings
from fusionkit.errors import FusionkitError, UsageError, first_line

PACKAGE = "fusionkit"
NAMED = 8  # processes that a message names at most
NONE = "none that can be imported"


class RemoteCluster:
    """See :class:`fusionkit.cluster.protocol.Cluster`."""

    def __init__(self, client: Client, address: str, wanted: int | None) -> None:
        self.client, self.count, self._address, self._wanted = client, WorkerCount(client), address, wanted
        self.count.look()

    @property
    def workers(self) -> int:
        """The number of workers that the user gave, else of those that are connected; at least 1."""
        return max(self._wanted or self.count.up, 1)

    def heal(self) -> None:
        self.count.look()

    def explain(self) -> str | None:
        return f"the scheduler at {self._address} has no workers; start some with `dask worker {self._address}`"


@contextmanager
def open_remote(settings: ClusterSettings) -> Iterator[RemoteCluster]:
    """Connect to the scheduler at ``settings.kind``.

    Raises:
        FusionkitError: it does not answer. UsageError: see :func:`check_versions`.
    """
    with dask.config.set(CONFIGURATION), ExitStack() as stack:
        try:
            client = stack.enter_context(
                Client(  # type: ignore[no-untyped-call]
                    settings.kind,
                    security=security_of(settings),
                    timeout=min(settings.start_timeout, 30.0),
                    set_as_default=False,
                )
            )
            check_versions(client)
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise FusionkitError(
                f"no scheduler answers at {settings.kind}",
                expected="the address that `dask scheduler` prints",
                received=first_line(error, kind=True),
                remedy="check the address, the network and, for tls://, the certificates",
            ) from error
        yield RemoteCluster(client, settings.kind, settings.workers)


def check_versions(client: Client) -> None:
    """Refuse a cluster whose scheduler or workers have another version of fusionkit, or none that can be imported
    (UsageError). Two states of the code with one version number are not told apart.

    A worker that cannot import a task's function reports no error: it loses its connection and ends. So the versions
    are asked for before there are tasks, by Dask itself: a function of fusionkit could not answer where it is missing.
    """
    ours, unlike = version(PACKAGE), dict[str, list[str]]()
    found: Any = client.get_versions(packages=[PACKAGE])
    for place, answer in {"the scheduler": found["scheduler"], **found["workers"]}.items():
        if (theirs := answer["packages"].get(PACKAGE)) != ours:
            unlike.setdefault(theirs or NONE, []).append(place)
    if unlike:
        raise UsageError(
            "the cluster's processes need the same version of fusionkit as this one",
            expected=ours,
            received="; ".join(f"{theirs} on {_listed(places)}" for theirs, places in unlike.items()),
            remedy=f"install fusionkit {ours} for the interpreters that started these processes, and restart them",
        )


def _listed(places: list[str]) -> str:
    return ", ".join(places[:NAMED]) + (" …" if len(places) > NAMED else "")
