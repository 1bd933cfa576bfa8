"""A reader of the states in NumPy, json and struct alone, written from docs/store-format.md: no fusionkit, no zarr."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = {"float16": "<f2", "float32": "<f4", "bfloat16": "<u2", "int8": "i1"}


def read_states(store: Path, split: str) -> NDArray[Any]:
    """``[rows, layers, hidden]``; bfloat16 is widened to float32, int8 multiplied by its scales."""
    manifest = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
    if manifest["compression"] != "none":
        raise ValueError(f"chunks compressed with {manifest['compression']}: NumPy has no decoder, use a Zarr reader")
    fields, dtype = manifest["splits"][split], manifest["dtype"]
    layers, height, hidden = len(manifest["layers"]), fields["rows_per_chunk"], manifest["hidden"]
    pieces = []
    for k in range(-(-fields["rows"] // height)):
        raw = (store / "states.zarr" / split / "hidden_states" / "c" / str(k) / "0" / "0").read_bytes()
        block = np.frombuffer(raw[:-4], BITS[dtype]).reshape(layers, height, hidden)
        if dtype == "int8":
            raw = (store / "states.zarr" / split / "scales" / "c" / str(k) / "0").read_bytes()
            block = block * np.frombuffer(raw[:-4], "<f4").reshape(layers, height, 1)
        pieces.append(block.swapaxes(0, 1))  # [rows_per_chunk, layers, hidden]
    states = np.concatenate(pieces)[: fields["rows"]]
    return (states.astype("<u4") << 16).view("<f4") if dtype == "bfloat16" else states


def checksums(store: Path, split: str) -> Iterator[tuple[int, int]]:
    """Of each chunk: what the manifest tells, and what stands behind its bytes."""
    manifest = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
    for name, told in manifest["splits"][split]["chunks"].items():
        for k, crc32c in enumerate(told):
            file = store / "states.zarr" / split / name / "c" / str(k) / "0" / ("0" if name != "scales" else "")
            yield crc32c, struct.unpack("<I", file.read_bytes()[-4:])[0]
