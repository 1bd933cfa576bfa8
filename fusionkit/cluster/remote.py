"""Workers of a scheduler that runs already, ``dask scheduler`` or any other. Its owner replaces lost workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dask
from distributed import Client

from fusionkit.cluster.dask_config import CONFIGURATION, security_of
from fusionkit.cluster.protocol import WorkerCount
from fusionkit.cluster.settings import ClusterSettings
from fusionkit.errors import FusionkitError, first_line


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
        FusionkitError: it does not answer.
    """
    with dask.config.set(CONFIGURATION):
        try:
            client = Client(  # type: ignore[no-untyped-call]
                settings.kind,
                security=security_of(settings),
                timeout=min(settings.start_timeout, 30.0),
                set_as_default=False,
            )
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise FusionkitError(
                f"no scheduler answers at {settings.kind}",
                expected="the address that `dask scheduler` prints",
                received=first_line(error, kind=True),
                remedy="check the address, the network and, for tls://, the certificates",
            ) from error
        with client:
            yield RemoteCluster(client, settings.kind, settings.workers)
