"""A cluster of two processes on this machine, the tiny encoder of the fault tests, certificates valid for a day."""

from __future__ import annotations

import datetime
import importlib.util
import ipaddress
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fusionkit.cluster import Cluster, ClusterSettings, open_cluster


def _load(path: Path) -> Any:
    """Load a file among the tests as a module; the tests are no package."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}_for_clusters", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_faults = _load(Path(__file__).parent.parent / "faults" / "conftest.py")
model, encoder, place, source = _faults.model, _faults.encoder, _faults.place, _faults.source
chunk_bytes, encoded, content, whole_of = (
    _faults.chunk_bytes, _faults.encoded, _faults.content, _faults.whole_of
)  # fmt: skip
SETTINGS = ClusterSettings(workers=2, threads=1, gpus=0, start_timeout=120)


@pytest.fixture(scope="session")
def settings() -> ClusterSettings:
    """Two workers of one thread."""
    return SETTINGS


@pytest.fixture(scope="session")
def cluster(settings: ClusterSettings) -> Iterator[Cluster]:
    """Two workers for all tests; a worker that a test kills is replaced."""
    with open_cluster(settings) as opened:
        yield opened


Pids = Callable[[], list[int]]


@pytest.fixture
def pids(cluster: Cluster) -> Pids:
    """A function that gives the process ids of the workers."""

    def ask() -> list[int]:
        cluster.client.wait_for_workers(2, timeout=120)
        return list(cluster.client.run(os.getpid).values())

    return ask


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], Any]], Any]:
    """A function that waits until another returns a true value, and returns that value."""

    def wait(happened: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 180
        while not (found := happened()):
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.02)
        return found

    return wait


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files of an authority's certificate, and of a certificate it signed for this machine with its key, by setting."""
    folder = tmp_path_factory.mktemp("tls")
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fusionkit test")])
    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    today = datetime.datetime.now(datetime.UTC)

    def signed(key: Any, subject: x509.Name, ca: bool) -> x509.Certificate:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number()).not_valid_before(today - datetime.timedelta(days=1))
        made = made.not_valid_after(today + datetime.timedelta(days=1)).add_extension(names, critical=False)
        made = made.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        return made.sign(authority, hashes.SHA256())

    machine = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    pem = serialization.Encoding.PEM
    files = {
        "tls_ca": signed(authority, name, ca=True).public_bytes(pem),
        "tls_cert": signed(own, machine, ca=False).public_bytes(pem),
        "tls_key": own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    }
    for file, data in files.items():
        (folder / f"{file}.pem").write_bytes(data)
    return {file: str(folder / f"{file}.pem") for file in files}
