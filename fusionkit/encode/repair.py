"""Encoding a finished store's damaged chunks again, and only those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusionkit.encode.batches import Part
from fusionkit.encode.lock import only_encoder
from fusionkit.encode.parts import PartEncoder
from fusionkit.encoder import Encoder
from fusionkit.errors import IdentityError, StoreError
from fusionkit.files import write_json
from fusionkit.places import Place, place_errors
from fusionkit.store.layout import chunk_path
from fusionkit.store.manifest import MANIFEST, read_manifest, refuse_other, split_layout


def damaged_parts(store: Place, faults: dict[str, str]) -> list[Part]:
    """The parts behind damaged files.

    Args:
        faults: paths inside the store, as :func:`fusionkit.store.verify_store` names them.

    Raises:
        StoreError: a damaged file is no chunk of states; it came from the source, not from the encoder.
    """
    manifest = read_manifest(store)
    parts = {
        str(chunk_path(store, split, chunk, array.name)).removeprefix(f"{store}/"): Part(split, chunk)
        for split in manifest["splits"]
        for layout in [split_layout(manifest, split)]
        for array in layout.arrays
        for chunk in range(layout.chunks)
    }
    if others := sorted(set(faults) - set(parts)):
        raise StoreError(
            f"{others[0]} of {store} cannot be repaired from the store alone",
            expected="damage in chunks of hidden_states",
            received=faults[others[0]],
            remedy="restore the file, or encode the source again with --overwrite",
        )
    return list(dict.fromkeys(parts[path] for path in faults))


def repair(store: Place, parts: list[Part], encoder: Encoder, on_tokens: Callable[[int], None]) -> list[Part]:
    """Encode these parts of a finished store again.

    Returns:
        the parts whose bytes are not the recorded ones (another processor or library rounds otherwise); the
        manifest then names the new checksums.

    Raises:
        IdentityError: the encoder is not the one that made the store.
    """
    manifest = read_manifest(store)
    _refuse_other_encoder(store, manifest, encoder)
    changed = []
    part_encoder = PartEncoder(store, manifest, encoder)
    with place_errors(store), only_encoder(store) as check_lock:
        for part in parts:
            check_lock()
            record = part_encoder.encode(part, on_tokens)
            recorded = manifest["splits"][part.split]["chunks"]
            for name, crc32c in record.crc32c.items():
                if crc32c != recorded[name][part.chunk]:
                    recorded[name][part.chunk] = crc32c
                    changed.append(part)
        if changed:
            write_json(store / MANIFEST, manifest)
    return list(dict.fromkeys(changed))


def _refuse_other_encoder(store: Place, manifest: dict[str, Any], encoder: Encoder) -> None:
    found = {"encoder": manifest["identity"]["encoder"]}
    try:
        refuse_other(store, found, {"encoder": encoder.identity})
    except IdentityError as error:
        raise IdentityError(error.what, remedy="name the encoder that made the store with --encoder") from None
