"""Encode damaged chunks of a finished store again, and compare stored states with live ones."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fusionkit.alignment import lay_rows
from fusionkit.encode.batches import Part
from fusionkit.encode.lock import only_encoder
from fusionkit.encode.part_records import all_parts
from fusionkit.encode.parts import PartEncoder
from fusionkit.encoder import Encoder
from fusionkit.errors import StoreError
from fusionkit.io.files import write_json
from fusionkit.io.places import Place, place_errors
from fusionkit.specs import MASKED
from fusionkit.store import Store
from fusionkit.store.chunks import UNREAD
from fusionkit.store.layout import NOT_MASKED, chunk_name, read_small
from fusionkit.store.manifest import read_manifest, split_layout
from fusionkit.store.presence import MANIFEST
from fusionkit.store.same_encoder import refuse_other_encoder

BAD_DISK = os.strerror(errno.EIO)


def damaged_parts(store: Place, faults: dict[str, str]) -> list[Part]:
    """The parts that wrote damaged files.

    Args:
        faults: what is wrong with files, by the paths of :func:`fusionkit.store.verify_store`.

    Raises:
        StoreError: a damaged file is not a chunk of states and cannot be repaired from the store alone; or a file
            cannot be read, for another reason than a fault of the disk.
    """
    manifest = read_manifest(store)
    parts = {
        chunk_name(part.split, part.chunk, array.name): part
        for part in all_parts(manifest)
        for array in split_layout(manifest, part.split).arrays
    }
    if closed := sorted(path for path, fault in faults.items() if fault.startswith(UNREAD) and BAD_DISK not in fault):
        raise StoreError(
            f"{closed[0]} of {store} cannot be read, so it is not known whether it is damaged",
            received=faults[closed[0]],
            remedy="check the place and its permissions",
        )
    if others := sorted(set(faults) - set(parts)):
        raise StoreError(
            f"{others[0]} of {store} cannot be repaired from the store alone",
            expected="damage in chunks of hidden_states",
            received=faults[others[0]],
            remedy="restore the file, or encode the source again with --overwrite",
        )
    return list(dict.fromkeys(parts[path] for path in faults))


def repair(store: Place, parts: list[Part], encoder: Encoder) -> list[Part]:
    """Encode these parts of a finished store again.

    Returns:
        the parts whose bytes differ from the recorded ones (another processor or library rounds differently); the
        manifest then has the new checksums.

    Raises:
        EncoderError: the encoder is not the one that made the store. HeldError: another process encodes into it.
    """
    changed = []
    with place_errors(store), only_encoder(store) as check_lock:
        manifest = read_manifest(store)
        what = f"the encoder {encoder.name!r} is not the one that made {store}"
        remedy = "name the encoder that made the store with --encoder"
        refuse_other_encoder(encoder.identity, manifest["identity"]["encoder"], what, remedy)
        computed_with = manifest["provenance"].setdefault("computed_with", [])
        part_encoder = PartEncoder(store, manifest, encoder)
        for part in parts:
            record = part_encoder.encode(part, check=check_lock)
            chunks = manifest["splits"][part.split]["chunks"]
            if differ := record.crc32c != {name: chunks[name][part.chunk] for name in record.crc32c}:
                for name, crc32c in record.crc32c.items():
                    chunks[name][part.chunk] = crc32c
                changed.append(part)
            if new := record.computed_with not in computed_with:
                computed_with.append(record.computed_with)
            if differ or new:
                write_json(store / MANIFEST, manifest)
    return changed


@dataclass(frozen=True)
class LayerDifference:
    """The difference between one layer's stored rows and live ones.

    Attributes:
        layer: its index among the hidden states. largest: the largest absolute difference between a stored and a live
            number. cosine: the smallest cosine between a stored and a live row. Masked rows are left out.
    """

    layer: int
    largest: float
    cosine: float


def compare_sample(store: Store, encoder: Encoder, examples: int, seed: int = 0) -> list[LayerDifference]:
    """Encode a seeded sample of examples live, unpadded, and compare it with the store.

    Args:
        examples: how many to draw uniformly from all splits together; where pairs are stored as two sequences, how
            many sequences.
    """
    sizes = {split: store[split].sequences for split in store.splits}
    total = sum(sizes.values())
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(total, min(examples, total), replace=False))
    largest = torch.zeros(len(store.layers))
    cosine = torch.ones(len(store.layers))
    start = 0
    for split, size in sizes.items():
        for example in (chosen[(chosen >= start) & (chosen < start + size)] - start).tolist():
            ragged = store[split].take_sequences([example])
            stored, mask = ragged.hidden_states.float(), torch.from_numpy(ragged.row_mask)
            if not bool(mask.any()):
                continue
            live = _live(store, encoder, split, example)[mask]  # [rows, layers, hidden]
            stored = stored[mask]
            largest = torch.maximum(largest, (live - stored).abs().amax(dim=(0, 2)))
            cosine = torch.minimum(cosine, torch.cosine_similarity(live, stored, dim=2).amin(dim=0))
        start += size
    return [
        LayerDifference(layer, float(largest[position]), float(cosine[position]))
        for position, layer in enumerate(store.layers)
    ]


def _live(store: Store, encoder: Encoder, split: str, example: int) -> Tensor:
    """The example's rows from a forward pass of it alone: ``[rows, layers, hidden]`` in float32."""
    part = store[split]
    start, stop = (int(at) for at in part.token_offsets[example : example + 2])
    ids = torch.from_numpy(read_small(store.path, split, "token_ids", start, stop).astype(np.int64))
    segments = torch.from_numpy(read_small(store.path, split, "segments", start, stop).astype(np.int64))
    count = np.diff(part.row_offsets[example : example + 2])
    chosen = read_small(store.path, split, "mlm_labels", start, stop) != NOT_MASKED if store.rows == MASKED else None
    rows = lay_rows(store.rows, np.array([0, stop - start]), part.word_index[start:stop], count, chosen)
    device = encoder.device
    states = encoder.forward(ids[None].to(device), torch.ones_like(ids)[None].to(device), segments[None].to(device))
    picked = torch.stack([states[layer][0].float().cpu() for layer in store.layers], dim=1)  # [tokens, layers, hidden]
    # A masked row's span is empty; its mean is NaN and is not used.
    return torch.stack(
        [picked[first:last].mean(0) for first, last in zip(rows.first.tolist(), rows.last.tolist(), strict=True)]
    )
