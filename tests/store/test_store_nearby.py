"""Stores that lie beside folders of runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fusionkit.io.places import UnreadableError, is_file
from fusionkit.store import presence
from fusionkit.store.nearby import find_stores, refuse_storeless


def test_a_folder_that_cannot_be_read_hides_no_store_beside_it(
    fresh: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(fresh.path, tmp_path / "all" / "my.store")
    (tmp_path / "all" / "closed").mkdir()

    def asked(place: Path) -> bool:
        if place.parent.name == "closed":
            raise UnreadableError("cannot read it")
        return is_file(place)

    monkeypatch.setattr(presence, "is_file", asked)
    refuse_storeless([tmp_path / "all"])
    assert [store.path for store in find_stores([tmp_path / "all" / "runs"]).values()] == [
        (tmp_path / "all" / "my.store").resolve()
    ]
