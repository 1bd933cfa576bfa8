"""A reader of the states in NumPy, json and struct alone, written from docs/store-format.md: no fusionkit, no zarr."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = {"float16": "<f2", "float32": "<f4", "bfloat16": "<u2"}


def read_states(store: Path, split: str) -> NDArray[Any]:
    """``[rows, layers, hidden]``; bfloat16 is widened to float32."""
    manifest = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
    fields = manifest["splits"][split]
    shape = len(manifest["layers"]), fields["rows_per_chunk"], manifest["hidden"]
    chunks = -(-fields["rows"] // fields["rows_per_chunk"])
    states = np.zeros((fields["rows"], shape[0], shape[2]), BITS[manifest["dtype"]])
    for k in range(chunks):
        raw = (store / "states.zarr" / split / "hidden_states" / "c" / str(k) / "0" / "0").read_bytes()
        block = np.frombuffer(raw[:-4], states.dtype).reshape(shape).swapaxes(0, 1)  # [rows_per_chunk, layers, hidden]
        start = k * shape[1]
        states[start : start + shape[1]] = block[: fields["rows"] - start]
    return (states.astype("<u4") << 16).view("<f4") if manifest["dtype"] == "bfloat16" else states


def checksums(store: Path, split: str) -> Iterator[tuple[int, int]]:
    """Of each chunk: what the manifest tells, and what stands behind its bytes."""
    manifest = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
    for k, told in enumerate(manifest["splits"][split]["chunks"]["hidden_states"]):
        raw = (store / "states.zarr" / split / "hidden_states" / "c" / str(k) / "0" / "0").read_bytes()
        yield told, struct.unpack("<I", raw[-4:])[0]
