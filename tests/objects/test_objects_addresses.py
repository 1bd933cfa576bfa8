"""Stores at any address that fsspec knows: here one in memory, whose filesystem knows no event loop, and local ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from fusionkit.encode.repair import damaged_parts, repair
from fusionkit.encoder import Encoder
from fusionkit.errors import StoppedError, StoreError, UsageError
from fusionkit.io.places import place_of
from fusionkit.store import open_store, verify_store

Encoding = Callable[..., Any]
Stores = Callable[..., Path]
CHUNK = "states.zarr/train/hidden_states/c/{}/0/0"


@pytest.fixture
def memory() -> Iterator[Any]:
    """A place in this process's memory."""
    place = place_of("memory://fusionkit-test/s")
    yield place
    fsspec.filesystem("memory").store.clear()


def held(place: Any) -> dict[str, Any]:
    """What lies below a place in memory, times left out."""
    prefix = f"{place.path}/"
    found = {
        name.removeprefix(prefix): file.getvalue()
        for name, file in fsspec.filesystem("memory").store.items()
        if name.startswith(prefix)
    }
    for name in found:
        if name == "manifest.json" or name.startswith("parts/"):
            value = json.loads(found[name])
            found[name] = {
                key: inner for key, inner in value.items() if key not in ("provenance", "seconds", "computed_with")
            }
    return found


@pytest.mark.parametrize("spec", [{}, {"dtype": "int8"}, {"compress": "zstd"}], ids=str)
def test_a_store_in_memory_is_gone_on_with_read_and_verified(
    memory: Any, encoded: Encoding, local: Stores, content: Callable[[Path], Any], spec: dict[str, str]
) -> None:
    asked = itertools.count()
    with pytest.raises(StoppedError):
        encoded(memory, stop=lambda: next(asked) == 3, **spec)
    with pytest.raises(StoreError, match="is not finished"):
        open_store(memory)
    assert encoded(memory, **spec).outcome == "resumed"
    assert encoded(memory, **spec).outcome == "complete"
    assert held(memory) == content(local(**spec))
    assert list(fsspec.filesystem("memory").ls(memory.parent.path, detail=False)) == [memory.path]
    here, there = open_store(local(**spec)), open_store("memory://fusionkit-test/s")
    for split in here.splits:
        np.testing.assert_array_equal(there[split].hidden_states[:], here[split].hidden_states[:])
        assert there[split].take([1, 0]).hidden_states.equal(here[split].take([1, 0]).hidden_states)
        assert there[split].examples.equals(here[split].examples)
    assert [checked.fault for checked in verify_store(memory) if checked.fault] == []


def test_damage_in_memory_is_found_and_mended(
    memory: Any, encoded: Encoding, encoder: Encoder, local: Stores, content: Callable[[Path], Any]
) -> None:
    encoded(memory)
    (memory / CHUNK.format(1)).unlink()
    (memory / CHUNK.format(3)).write_bytes(b"cut")
    faults = {checked.path: checked.fault for checked in verify_store(memory) if checked.fault}
    assert list(faults) == [CHUNK.format(1), CHUNK.format(3)]
    with pytest.raises(StoreError, match="is missing"):
        _ = open_store(memory)["train"].hidden_states[:]
    assert repair(memory, damaged_parts(memory, faults), encoder) == []
    assert held(memory) == content(local())


def test_other_files_in_memory_are_never_touched(memory: Any, encoded: Encoding) -> None:
    (memory / "notes.txt").write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists and is no store"):
        encoded(memory, overwrite=True)
    assert held(memory) == {"notes.txt": b"mine"}
    encoded(memory.with_name("s2"), rows="mean")
    encoded(memory.with_name("s2"), rows="cls", overwrite=True)
    assert held(memory) == {"notes.txt": b"mine"}


def test_an_address_of_a_file_is_its_path(encoded: Encoding, local: Stores, content: Any, tmp_path: Path) -> None:
    out = place_of(f"file://{tmp_path}/s")
    assert out == tmp_path / "s"
    assert encoded(out).outcome == "encoded"
    assert content(tmp_path / "s") == content(local())
    assert open_store(f"file://{tmp_path}/s").reads == "memory map"
