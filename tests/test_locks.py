"""Locked files: one holder at a time, and asking who holds takes nothing from anybody."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import IO, Any

import pytest

from fusionkit.io.locks import holder_of, is_locked, sign, try_lock, try_lock_in


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


def test_a_folder_that_another_process_removes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands begin on one new folder: one gives up its lock and the folder while the other opens the file."""
    folder, mkdir, made = tmp_path / "new", Path.mkdir, list[Path]()

    def then_removed(path: Path, *given: Any, **named: Any) -> None:
        mkdir(path, *given, **named)
        if path == folder:
            made.append(path)
            if len(made) < 3:
                shutil.rmtree(path)

    monkeypatch.setattr(Path, "mkdir", then_removed)
    held = try_lock_in(folder, "lock")
    assert held is not None
    with held:
        assert is_locked(folder / "lock")
    assert len(made) == 3


def test_a_lock_is_not_a_link_to_another_file(tmp_path: Path) -> None:
    """Its holder would sign its name over that file."""
    (tmp_path / "thesis").write_text("content")
    (tmp_path / "lock").symlink_to(tmp_path / "thesis")
    with pytest.raises(OSError, match="symbolic links"):
        try_lock(tmp_path / "lock")
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").symlink_to(tmp_path / "new")
    with pytest.raises(OSError, match="symbolic links"):
        try_lock(tmp_path / "lock")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["lock", "thesis"]
    assert (tmp_path / "thesis").read_text() == "content"


def test_a_file_in_the_way_of_a_folder_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    with pytest.raises(FileExistsError, match="new"):
        try_lock_in(tmp_path / "new", "lock")
