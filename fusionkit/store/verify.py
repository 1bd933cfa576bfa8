"""Checking each byte of a store against its checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionkit.errors import StoreError
from fusionkit.store.chunks import chunk_fault
from fusionkit.store.layout import chunk_path
from fusionkit.store.manifest import MANIFEST, disagreement, read_manifest, split_layout


@dataclass(frozen=True)
class Checked:
    """One file looked at: its path inside the store and what is wrong with it, or None."""

    path: str
    fault: str | None


def verify_store(path: Path) -> Iterator[Checked]:
    """Read each chunk and each other file of a complete store, and compare.

    Yields:
        a :class:`Checked` a file, chunks first.
    """
    manifest = read_manifest(path)
    for split, fields in manifest["splits"].items():
        layout = split_layout(manifest, split)
        recorded = fields["chunks"]
        try:
            fault, chunks = disagreement(path, manifest, split), layout.chunks
        except StoreError:  # the array's metadata is among the files below
            fault, chunks = None, len(recorded)
        if fault is not None:
            yield Checked(MANIFEST, fault)
            continue
        for chunk in range(chunks):
            file = chunk_path(path, split, chunk)
            checksum = recorded[chunk] if chunk < len(recorded) else None
            fault = chunk_fault(file, layout, checksum) if checksum is not None else "not recorded"
            yield Checked(str(file.relative_to(path)), fault)
    for name, digest in manifest["files"].items():
        yield Checked(name, _file_fault(path / name, digest))


def small_files(path: Path) -> dict[str, str]:
    """SHA-256 of every file of a store that is neither a chunk of states nor bookkeeping."""
    found = {}
    for file in sorted([*(path / "states.zarr").rglob("*"), *(path / "examples").rglob("*")]):
        inside = file.relative_to(path)
        if file.is_file() and inside.parts[2:4] != ("hidden_states", "c") and not file.name.endswith(".partial"):
            found[inside.as_posix()] = _sha256(file)
    return found


def _file_fault(file: Path, digest: Any) -> str | None:
    if not file.is_file():
        return "missing"
    return None if _sha256(file) == digest else "its bytes do not match its checksum"


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
