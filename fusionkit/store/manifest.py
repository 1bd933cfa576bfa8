"""Plan and manifest: what a store is made of, and whether two stores are the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from fusionkit.errors import IdentityError, StoreError
from fusionkit.files import read_json
from fusionkit.specs import digest_of
from fusionkit.store.layout import FORMAT, ITEM_BYTES, VERSION, StatesLayout

PLAN, MANIFEST = "plan.json", "manifest.json"
NEEDED = {
    "identity": dict, "splits": dict, "rows": str, "layers": list, "hidden": int, "dtype": str,
    "columns": dict, "encoder": dict,
}  # fmt: skip
NEEDED_SPLIT = {"examples": int, "rows": int, "tokens": int, "rows_per_chunk": int, "masked": int, "cut": int}


def is_store(path: Path) -> bool:
    """True where a store was begun or finished."""
    return (path / PLAN).is_file() or (path / MANIFEST).is_file()


def is_complete(path: Path) -> bool:
    """True where a store was finished."""
    return (path / MANIFEST).is_file()


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a complete store, checked for everything that reading relies on.

    Raises:
        StoreError: no store, an unfinished one, a damaged manifest, or one of another format version.
    """
    if not is_complete(path):
        if (path / PLAN).is_file():
            done = len(list((path / "parts").glob("*.json"))) if (path / "parts").is_dir() else 0
            raise StoreError(
                f"the store {path} is not finished",
                expected="a manifest.json",
                received=f"a plan and {done} finished parts",
                remedy="run the same `fusionkit encode` again: it goes on where it stopped",
            )
        raise StoreError(
            f"{path} is no store",
            expected="a folder with a manifest.json",
            received="a path that does not exist" if not path.exists() else "something else",
            remedy="make one with `fusionkit encode SOURCE --out STORE`",
        )
    return checked(path / MANIFEST)


def read_plan(path: Path) -> dict[str, Any]:
    """The plan of a store under way."""
    return checked(path / PLAN)


def checked(path: Path) -> dict[str, Any]:
    """A plan or manifest, refused where a field is missing or of the wrong type."""
    value = read_json(path)
    if value.get("format") != FORMAT or value.get("version") != VERSION:
        raise StoreError(
            f"{path} is of another format",
            expected=f"{FORMAT} version {VERSION}",
            received=f"{value.get('format')} version {value.get('version')}",
            remedy="open it with the fusionkit that wrote it, or a newer one",
        )
    for name, kind in NEEDED.items():
        _require(isinstance(value.get(name), kind), path, name)
    _require(value["dtype"] in ITEM_BYTES, path, "dtype")
    _require(value["hidden"] > 0, path, "hidden")
    _require(bool(value["layers"]) and all(isinstance(layer, int) for layer in value["layers"]), path, "layers")
    files = value.get("files", {})
    _require(isinstance(files, dict) and all(map(_inside, files)), path, "files")
    for split, fields in value["splits"].items():
        _require(isinstance(split, str) and split.isidentifier() and isinstance(fields, dict), path, "splits")
        for name, kind in NEEDED_SPLIT.items():
            _require(isinstance(fields.get(name), kind) and fields[name] >= 0, path, f"splits.{split}.{name}")
        _require(fields["rows_per_chunk"] >= 1, path, f"splits.{split}.rows_per_chunk")
        _require(isinstance(fields.get("chunks", []), list), path, f"splits.{split}.chunks")
    return value


def split_layout(manifest: Mapping[str, Any], split: str) -> StatesLayout:
    """The shape and chunking of one split's states."""
    fields = manifest["splits"][split]
    return StatesLayout(
        fields["rows"],
        len(manifest["layers"]),
        manifest["hidden"],
        fields["rows_per_chunk"],
        manifest["dtype"],
    )


def store_digest(manifest: Mapping[str, Any]) -> str:
    """The short name of a store's identity."""
    return digest_of(manifest["identity"])


def refuse_other(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise :class:`IdentityError` with the differing fields side by side, unless the two are equal."""
    ours, theirs = _flat(wanted), _flat(found)
    fields = [name for name in dict.fromkeys([*theirs, *ours]) if ours.get(name) != theirs.get(name)]
    if not fields:
        return
    width = max(len(name) for name in fields)
    shown = [f"{n:<{width}}  {_short(theirs.get(n)):<24}  {_short(ours.get(n))}" for n in fields]
    table = "\n    ".join([f"{'':<{width}}  {'in the store':<24}  asked for now", *shown])
    raise IdentityError(
        f"{path} holds something else; these fields differ:\n    {table}",
        remedy="choose another --out, or --overwrite to replace it",
    )


def _require(condition: bool, path: Path, field: str) -> None:
    if not condition:
        raise StoreError(f"{path} is damaged", expected=f"a valid field {field!r}", remedy="restore or encode it again")


def _inside(name: str) -> bool:
    """Whether a path in a manifest stays below the store."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {k: v for name, inner in value.items() for k, v in _flat(inner, f"{prefix}.{name}".strip(".")).items()}


def _short(value: Any) -> str:
    text = "–" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 24 else text[:21] + "…"
