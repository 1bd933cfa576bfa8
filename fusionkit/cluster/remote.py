"""Workers of a scheduler that runs already, ``dask scheduler`` or any other: who started them heals them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client

from fusionkit.cluster.dask_config import configured, security_of
from fusionkit.cluster.settings import ClusterSettings
from fusionkit.cluster.worker_count import WorkerCount
from fusionkit.errors import FusionkitError


class RemoteCluster:
    """See :class:`fusionkit.cluster.protocol.Cluster`."""

    def __init__(self, client: Client, address: str, wanted: int | None) -> None:
        self.client, self._address, self._wanted = client, address, wanted
        self._census = WorkerCount(client)
        self._census.look()

    @property
    def workers(self) -> int:
        """Those asked for, or all that have come."""
        return max(self._wanted or self._census.up, 1)

    @property
    def up(self) -> int:
        return self._census.up

    @property
    def lost(self) -> int:
        return self._census.lost

    def heal(self) -> None:
        self._census.look()

    def explain(self) -> str | None:
        return f"the scheduler at {self._address} has no workers; start some with `dask worker {self._address}`"

    def abandon(self) -> None:
        """They are not ours; what they are at they end, and it is kept."""


@contextmanager
def open_remote(settings: ClusterSettings) -> Iterator[RemoteCluster]:
    """Connect to the scheduler at ``settings.kind``.

    Raises:
        FusionkitError: it does not answer.
    """
    with configured():
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
                received=f"{type(error).__name__}: {error}".splitlines()[0],
                remedy="check the address, the network and, for tls://, the certificates",
            ) from error
        with client:
            yield RemoteCluster(client, settings.kind, settings.workers)
