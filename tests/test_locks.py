"""Locked files: one holder at a time, and asking who holds takes nothing from anybody."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO, Any

import pytest

from fusionkit.locks import holder_of, is_locked, sign, try_lock


def test_a_file_has_one_holder_until_that_closes_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    held = try_lock(path)
    assert held is not None
    with held:
        sign(held, "me")
        assert is_locked(path)
        assert try_lock(path) is None
        assert holder_of(path) == "me"
    assert not is_locked(path)
    again = try_lock(path)
    assert again is not None
    again.close()


def test_whoever_looks_for_a_moment_keeps_nobody_from_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One who asks holds a shared lock just when another tries to lock the file."""
    path, flock, asked = tmp_path / "lock", fcntl.flock, list[int]()
    path.touch()
    looking: list[IO[str]] = [path.open()]
    flock(looking[0], fcntl.LOCK_SH | fcntl.LOCK_NB)

    def then_goes(file: Any, how: int) -> None:
        asked.append(how)
        if len(asked) == 3:  # the exclusive lock was refused, and the shared one given
            looking.pop().close()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", then_goes)
    held = try_lock(path)
    assert held is not None
    held.close()
    assert not looking
