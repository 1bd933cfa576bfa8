"""A folder for the temporary files of one test, and a limit on file sizes that acts like a full disk."""

from __future__ import annotations

import contextlib
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where temporary files go, as if TMPDIR named it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def cramped() -> Callable[[int], AbstractContextManager[None]]:
    """Limits files to this many bytes, which acts like a full disk without filling one."""

    @contextlib.contextmanager
    def limit(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit
