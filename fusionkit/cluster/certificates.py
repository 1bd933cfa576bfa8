"""Certificates of a cluster that fusionkit starts: the user's, or temporary ones.

Whoever can reach a scheduler without TLS can run any code as its owner, even another user of the same machine. So if no
certificates are given, one key is made for the cluster. Only those who can read its file can connect.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from distributed import Security

from fusionkit.cluster.settings import ClusterSettings
from fusionkit.io.files import disk_errors

FILES = {"tls_ca": "ca.pem", "tls_cert": "certificate.pem", "tls_key": "key.pem"}


@contextmanager
def certified(settings: ClusterSettings, folder: Path) -> Iterator[ClusterSettings]:
    """The settings with certificates: their own, else files of a temporary key, which are removed with the block.

    Settings that are ``public`` are returned unchanged.

    Args:
        folder: where a folder that only this user can read is made for the files; workers must see it.

    Raises:
        FusionkitError: the files cannot be written.
    """
    if settings.tls or settings.public:
        yield settings
        return
    made = Security.temporary()  # type: ignore[no-untyped-call]
    contents = {"tls_ca": made.tls_ca_file, "tls_cert": made.tls_client_cert, "tls_key": made.tls_client_key}
    with disk_errors(folder):
        private = tempfile.TemporaryDirectory(prefix=".fusionkit-key-", dir=folder)  # of mode 0700
    with private:
        paths = {name: str(Path(private.name).resolve() / file) for name, file in FILES.items()}
        with disk_errors(folder):
            for name, path in paths.items():
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(contents[name])
        yield replace(settings, tls_ca=paths["tls_ca"], tls_cert=paths["tls_cert"], tls_key=paths["tls_key"])
