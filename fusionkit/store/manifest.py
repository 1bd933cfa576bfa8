"""Plan and manifest: the fields of a store, and the comparison of two stores' identities."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from fusionkit.errors import IdentityError, StoppedError, StoreError
from fusionkit.io.files import read_json
from fusionkit.io.places import Place, is_file, is_there, listed
from fusionkit.lm_head import ACTIVATIONS
from fusionkit.plural import counted
from fusionkit.specs import COMPRESSIONS, MASKED, digest_of
from fusionkit.store.layout import (
    FORMAT,
    ITEM_BYTES,
    PAIRS,
    SIDES,
    VERSION,
    StatesLayout,
    codecs_of,
    damaged_store,
    expected_codecs,
    open_array,
)
from fusionkit.store.presence import LM_HEAD, MANIFEST, PLAN, is_complete, states_path

MOST_CHUNKS = 1 << 20  # of a split: 64 TiB of states
# The JSON type of each field; "*" is any name, a list has any length, integers are 0 or more.
TEXT = (str, type(None))
PLANNED: dict[str, Any] = {
    "source": str, "rows": str, "layers": [int], "hidden": int, "dtype": str, "compression": str,
    "batch_tokens": int, "batch_overhead": int, "files": {"*": str},
    "encoder": {"name": str, "layers": int, "parameters": int, "sentence_rows": str},
    "columns": {"text": TEXT, "pair": TEXT, "tokens": TEXT, "tags": [str], "labels": [str]},
    "identity": {
        "encoder": {"weights": str, "revision": TEXT}, "rows": str, "layers": [int], "dtype": str,
        "compute_dtype": str, "max_length": int, "columns": {"tokens": TEXT}, "data": {"*": str},
        "versions": {"*": str},
    },
    "splits": {
        "*": {"examples": int, "rows": int, "tokens": int, "rows_per_chunk": int, "masked": int, "cut": int}
    },
}  # fmt: skip
FINISHED: dict[str, Any] = {
    "splits": {"*": {"chunks": {"*": [int]}}},
    "provenance": {"created": str, "seconds": (int, float), "device": str},
}  # fmt: skip
MASKING: dict[str, Any] = {
    "identity": {
        "mlm": {
            "mask_seed": int, "mask_share": float,
            "lm_head": {"sha256": str, "activation": str, "layer_norm_eps": float},
        }
    }
}  # fmt: skip


def read_manifest(path: Place) -> dict[str, Any]:
    """The manifest of a complete store, checked for everything that reading relies on.

    Raises:
        StoreError: no store, an unfinished one, a damaged manifest, or one of another format version.
    """
    if not is_complete(path):
        if is_file(path / PLAN):
            done = sum(place.name.endswith(".json") for place in listed(path / "parts"))
            raise StoreError(
                f"the store {path} is not finished",
                expected="a manifest.json",
                received=f"a plan and {counted(done, 'finished part')}",
                remedy="run the same `fusionkit encode` again: it goes on where it stopped",
            )
        raise StoreError(
            f"{path} is no store",
            expected="a folder with a manifest.json",
            received="a path that does not exist" if not is_there(path) else "something else",
            remedy="make one with `fusionkit encode SOURCE --out STORE`",
        )
    return checked(path / MANIFEST)


def read_plan(path: Place) -> dict[str, Any]:
    return checked(path / PLAN)


def checked(path: Place) -> dict[str, Any]:
    """A plan or manifest, refused where a field is missing or of the wrong type."""
    value = read_json(path)
    if value.get("format") != FORMAT or value.get("version") != VERSION:
        raise StoreError(
            f"{path} is of another format",
            expected=f"{FORMAT} version {VERSION}",
            received=f"{value.get('format')} version {value.get('version')}",
            remedy="open it with the fusionkit that wrote it, or a newer one",
        )
    shapes = [PLANNED]
    shapes += [FINISHED] if path.name == MANIFEST else []
    shapes += [MASKING] if value.get("rows") == MASKED else []
    for shape in shapes:
        field = _misfit(value, shape, "")
        _require(field is None, path, field or "")
    _require(value["dtype"] in ITEM_BYTES, path, "dtype")
    _require(value["compression"] in COMPRESSIONS, path, "compression")
    for name in ("hidden", "batch_tokens", "layers"):
        _require(bool(value[name]), path, name)
    for name in ("rows", "layers", "dtype"):
        _require(value[name] == value["identity"][name], path, name)
    _require(set(value["splits"]) == set(value["identity"]["data"]), path, "splits")
    _require(value["identity"].get("pair_as", "two") == "two", path, "identity.pair_as")
    for split, fields in value["splits"].items():
        _require(split.isidentifier(), path, "splits")
        has_sequences = _misfit(fields.get("sequences"), int, "") is None
        _require(has_sequences if is_two(value) else "sequences" not in fields, path, f"splits.{split}.sequences")
        _require(fields["rows_per_chunk"] >= 1, path, f"splits.{split}.rows_per_chunk")
        layout = split_layout(value, split)
        names = {array.name for array in layout.arrays}
        _require(set(fields.get("chunks", names)) == names, path, f"splits.{split}.chunks")
        # Objects are made for each chunk: a false number of chunks must not fill the memory.
        told = {len(recorded) for recorded in fields.get("chunks", {}).values()}
        received = f"{layout.chunks:,} chunks of {fields['rows']:,} rows, checksums of {max(told, default=0):,}"
        if path.name == MANIFEST:
            _require(told == {layout.chunks}, path, f"splits.{split}.chunks", received)
        _require(layout.chunks <= MOST_CHUNKS, path, f"splits.{split}.rows", received)
    _require(all(map(_inside, value["files"])), path, "files")
    if value["rows"] == MASKED:
        head = value["identity"]["mlm"]["lm_head"]
        _require(value["files"].get(LM_HEAD) == head["sha256"], path, f"files.{LM_HEAD}")
        _require(head["activation"] in ACTIVATIONS, path, "identity.mlm.lm_head.activation")
    return value


def input_kind(columns: Mapping[str, Any]) -> str:
    """What an encoder reads of these columns by role: ``words``, ``pairs`` or ``texts``."""
    return "words" if columns["tokens"] else "pairs" if columns["pair"] else "texts"


def split_layout(manifest: Mapping[str, Any], split: str) -> StatesLayout:
    """The shape and chunking of one split's states."""
    fields = manifest["splits"][split]
    return StatesLayout(
        fields["rows"],
        len(manifest["layers"]),
        manifest["hidden"],
        fields["rows_per_chunk"],
        manifest["dtype"],
        manifest["compression"],
    )


def is_two(manifest: Mapping[str, Any]) -> bool:
    """Whether each example is a pair of texts that is stored as two sequences."""
    return bool(manifest["identity"].get("pair_as") == "two")


def sequences_of(fields: Mapping[str, Any]) -> int:
    """The number of sequences of a split, from its fields: one per example, or one per distinct text of its pairs."""
    return int(fields.get("sequences", fields["examples"]))


def disagreement(store: Place, manifest: Mapping[str, Any], split: str) -> str | None:
    """The first difference between the arrays' metadata and a plan or manifest, or None.

    Raises:
        StoreError: an array's metadata cannot be read.
    """
    fields, layout = manifest["splits"][split], split_layout(manifest, split)
    try:
        offsets, tokens = (open_array(store, split, name) for name in ("row_offsets", "token_ids"))
        arrays = [open_array(store, split, array.name) for array in layout.arrays]
        labels = open_array(store, split, "mlm_labels") if manifest["rows"] == MASKED else tokens
        states = arrays[0]
        both = {  # found in the metadata, and given by the plan or manifest
            "shape": ([a.shape for a in arrays], [layout.shape[: a.ndim] for a in arrays]),
            "chunks": ([a.chunks for a in arrays], [layout.chunk_shape[: a.ndim] for a in arrays]),
            "codecs": ([codecs_of(a) for a in arrays], [expected_codecs(layout, a) for a in layout.arrays]),
            "dtype": (states.attrs["dtype"], layout.dtype),
            "types": ([str(a.dtype) for a in arrays], [a.dtype for a in layout.arrays]),
            "layers": (states.attrs["layers"], manifest["layers"]),
            "sequences" if is_two(manifest) else "examples": (offsets.shape, (sequences_of(fields) + 1,)),
            "tokens": (tokens.shape, (fields["tokens"],)),
            "labels": (labels.shape, (fields["tokens"],)),
        }
        if is_two(manifest):
            both["examples"] = (open_array(store, split, PAIRS).shape, (fields["examples"], SIDES))
    except StoppedError:
        raise
    except Exception as error:  # zarr raises OSError, KeyError, TypeError and ValueError for bad metadata
        raise damaged_store(states_path(store) / split, error) from error
    for name, (found, given) in both.items():
        if found != given:
            return f"{split}: {name} {found} in states.zarr, not {given}"
    return None


def agreed_layout(store: Place, manifest: Mapping[str, Any], split: str) -> StatesLayout:
    """A split's layout, checked against the arrays' metadata.

    Raises:
        StoreError: plan or manifest and metadata differ, or an array's metadata cannot be read.
    """
    if (fault := disagreement(store, manifest, split)) is not None:
        raise StoreError(
            f"{store} is damaged", expected="a manifest that fits the arrays", received=fault,
            remedy="restore or encode it again",
        )  # fmt: skip
    return split_layout(manifest, split)


def store_digest(manifest: Mapping[str, Any]) -> str:
    """The short name of a store's identity."""
    return digest_of(manifest["identity"])


def refuse_other(path: Place, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise :class:`IdentityError` with the differing fields side by side, unless the two are equal."""
    ours, theirs = _flat(wanted), _flat(found)
    fields = [name for name in dict.fromkeys([*theirs, *ours]) if ours.get(name, ...) != theirs.get(name, ...)]
    if not fields:
        return
    width = max(len(name) for name in fields)
    shown = [f"{n:<{width}}  {_short(theirs.get(n)):<24}  {_short(ours.get(n))}" for n in fields]
    table = "\n    ".join([f"{'':<{width}}  {'in the store':<24}  asked for now", *shown])
    raise IdentityError(
        f"{path} holds something else; these fields differ:\n    {table}",
        remedy="choose another --out, or --overwrite to replace it",
    )


def _require(condition: bool, path: Place, field: str, received: str | None = None) -> None:
    if not condition:
        raise StoreError(
            f"{path} is damaged",
            expected=f"a valid field {field!r}",
            received=received,
            remedy="restore or encode it again",
        )


def _misfit(value: Any, shape: Any, name: str) -> str | None:
    """The first field below ``name`` that is missing or of another type than ``shape`` says; None if all fit."""
    if isinstance(shape, list):
        fits = type(value) is list and all(_misfit(item, shape[0], name) is None for item in value)
        return None if fits else name
    if not isinstance(shape, dict):
        kinds = shape if isinstance(shape, tuple) else (shape,)
        return None if type(value) in kinds and (type(value) is not int or value >= 0) else name
    if type(value) is not dict:
        return name
    for field, inner in shape.items():
        for known in value if field == "*" else [field]:
            below = f"{name}.{known}".lstrip(".")
            found = _misfit(value[known], inner, below) if known in value else below
            if found is not None:
                return found
    return None


def _inside(name: str) -> bool:
    """Whether a path in a manifest stays below the store."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    return {k: v for name, inner in value.items() for k, v in _flat(inner, f"{prefix}.{name}".strip(".")).items()}


def _short(value: Any) -> str:
    text = "–" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 24 else text[:21] + "…"
