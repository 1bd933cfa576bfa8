"""A scheduler that runs already, plain or under TLS; what listens, and who is let in."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from distributed import Security

from fusionkit.cluster import ClusterSettings, open_cluster, remote
from fusionkit.cluster.certificates import certified
from fusionkit.cluster.part_map import cluster_parts
from fusionkit.cluster.submitted import SubmittedTasks
from fusionkit.cluster.task_map import each_done
from fusionkit.encoder import Encoder
from fusionkit.errors import FusionkitError, UsageError

Until = Callable[[Callable[[], Any]], Any]


@contextmanager
def dask(what: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """``dask scheduler`` or ``dask worker``, as a user would start it."""
    command = [
        sys.executable,
        "-m",
        f"distributed.cli.dask_{what}",
        "--host",
        "127.0.0.1",
        "--no-dashboard",
        *arguments,
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.soak("products")
def test_a_scheduler_without_workers_is_told_of_and_one_with_them_makes_the_same_bytes(
    encoder: Encoder, encoded: Callable[..., Any], whole_of: Callable[[str], Path],
    content: Callable[[Path], dict[str, Any]], tmp_path: Path, until: Until,
) -> None:  # fmt: skip
    file = tmp_path / "scheduler.json"
    with dask("scheduler", "--port", "0", "--scheduler-file", str(file)) as scheduler:
        until(lambda: file.exists() and file.read_text().strip().endswith("}"))
        address = json.loads(file.read_text())["address"]
        with open_cluster(ClusterSettings(kind=address)) as cluster:
            with pytest.raises(FusionkitError, match="no worker for 1 seconds") as caught:
                list(each_done(cluster, lambda item: item, [1], on_aside=print, start_timeout=1.0))
            assert f"start some with `dask worker {address}`" in str(caught.value.received)
        settings = ClusterSettings(kind=address, threads=1)
        patience = dataclasses.replace(settings, start_timeout=15)  # with a scheduler that is gone
        with dask("worker", address, "--nthreads", "1", "--no-nanny"), open_cluster(patience) as cluster:
            runner = cluster_parts(cluster, encoder, settings)
            assert encoded(tmp_path / "s", run_parts=runner).outcome == "encoded"
            assert content(tmp_path / "s") == content(whole_of("float16"))
            scheduler.kill()
            with pytest.raises(FusionkitError, match="the scheduler is gone"):
                list(each_done(cluster, lambda item: item, range(9), on_aside=print))
            until(lambda: cluster.client.status == "closed")  # what was under way is submitted anew by then, or never
            with pytest.raises(FusionkitError, match="the scheduler is gone"):
                SubmittedTasks[str](cluster.client).submit("late", abs, 1)
    with (
        pytest.raises(FusionkitError, match="no scheduler answers"),
        open_cluster(ClusterSettings(kind=address, start_timeout=0.5)),
    ):
        pass


def test_a_cluster_with_another_version_of_fusionkit_is_refused_at_once(
    cluster: Any, pids: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(pids()) == 2
    security, address = cluster.client.security, str(cluster.client.scheduler_info()["address"])
    files = {"tls_ca": security.tls_ca_file, "tls_cert": security.tls_client_cert, "tls_key": security.tls_client_key}
    settings = ClusterSettings(kind=address, **files)
    with open_cluster(settings):
        pass
    monkeypatch.setattr(remote, "version", lambda _: "9.9")
    with pytest.raises(UsageError, match="the same version of fusionkit") as caught, open_cluster(settings):
        pass
    assert caught.value.expected == "9.9"
    for place in ("the scheduler", *cluster.client.nthreads()):
        assert place in str(caught.value.received)


def test_the_workers_that_lack_fusionkit_are_named() -> None:
    found = {"a:1": None, "b:2": version("fusionkit"), "c:3": "0.0.1", "d:4": None}
    answers = {place: {"packages": {"fusionkit": theirs}} for place, theirs in found.items()}
    client: Any = SimpleNamespace(get_versions=lambda packages: {"scheduler": answers["b:2"], "workers": answers})
    with pytest.raises(UsageError) as caught:
        remote.check_versions(client)
    assert caught.value.received == "none that can be imported on a:1, d:4; 0.0.1 on c:3"


@pytest.mark.soak("products")
def test_under_tls_only_those_with_a_certificate_are_let_in(certificates: dict[str, Any]) -> None:
    with open_cluster(ClusterSettings(workers=1, gpus=0, **certificates)) as cluster:
        found = [record for _, record in each_done(cluster, lambda item: item + 1, range(5), on_aside=print)]
        assert sorted(found) == [1, 2, 3, 4, 5]
        address = str(cluster.client.scheduler_info()["address"])
        assert re.fullmatch(r"tls://127\.0\.0\.1:\d+", address)
        with open_cluster(ClusterSettings(kind=address, **certificates)) as other:
            assert list(other.client.nthreads().values()) == [1]  # type: ignore[no-untyped-call]
        turned_away(address)


def test_without_certificates_a_client_without_the_key_of_the_cluster_is_turned_away(cluster: Any) -> None:
    """A local cluster needs no setting for it: another user of the machine could else run code as this one."""
    address, key = str(cluster.client.scheduler_info()["address"]), Path(cluster.client.security.tls_client_key)
    assert re.fullmatch(r"tls://127\.0\.0\.1:\d+", address)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (key, key.parent)] == [0o600, 0o700]
    turned_away(address)


def test_a_temporary_key_ends_with_its_cluster(tmp_path: Path, certificates: dict[str, Any]) -> None:
    with certified(ClusterSettings(), tmp_path) as settings:
        assert settings.tls
        assert {Path(path).parent.parent for path in settings.tls_files.values()} == {tmp_path}
    assert list(tmp_path.iterdir()) == []
    for own in (ClusterSettings(**certificates), ClusterSettings(public=True)):
        with certified(own, tmp_path) as settings:
            assert settings is own


def turned_away(address: str) -> None:
    """Who has no certificate, or one of somebody else, whatever they think of the listener's; and who speaks without
    TLS.
    """
    host, port = address.removeprefix("tls://").split(":")
    foreign: ssl.SSLContext = Security.temporary().get_connection_args("client")["ssl_context"]  # type: ignore[no-untyped-call]
    for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), foreign):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        plain = socket.create_connection((host, int(port)), timeout=10)
        with plain, pytest.raises((ssl.SSLError, ConnectionResetError)), context.wrap_socket(plain) as stranger:
            stranger.recv(1)  # in TLS 1.3 a refusal of the client's certificate comes with the first answer
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        plain.sendall(bytes(64))
        with suppress(ConnectionResetError):
            assert plain.recv(1) in (b"", b"\x15")  # the end, or the alert of TLS


def test_a_worker_starts_in_safe_path_mode(cluster: Any) -> None:
    assert set(cluster.client.run(lambda: sys.flags.safe_path).values()) == {True}


def test_all_that_listens_is_on_loopback(cluster: Any, pids: Callable[[], list[int]]) -> None:
    listening = [
        connection.laddr.ip
        for process in map(psutil.Process, (os.getpid(), *pids()))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 3  # a scheduler and two workers
    assert set(listening) == {"127.0.0.1"}
