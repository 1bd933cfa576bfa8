"""By how much do the rows that a GPU computes differ from a CPU's, and from a second encode on the same GPU?

    python benchmarks/devices.py [SOURCE] [--limit N] [--device cuda] [--other cpu]

Rows in float32, so that no rounding hides a difference. The peer is the other device in the same precision; TF32, which
a CPU does not have, is compared with the CPU's float32.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionkit.bundled import travel_desk
from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.errors import FusionkitError, UsageError
from fusionkit.machine.devices import device_of
from fusionkit.sources import Source, guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import open_store

KINDS = (("words", "float32"), ("words", "bfloat16"), ("words", "tf32"), ("words-mean", "float32"))


def rows_of(source: Source, out: Path, rows: str, compute_dtype: str, device: str) -> NDArray[np.float32]:
    """The states of the first split, ``[rows, layers, hidden]``."""
    encoder = load_encoder("minilm", device=device, words=True, compute_dtype=compute_dtype)
    spec = EncodeSpec(rows=rows, dtype="float32", compute_dtype=compute_dtype)
    encode(source, guess_columns(source), out, spec, encoder)
    store = open_store(out)
    states: Any = store[store.splits[0]].hidden_states[:]
    return np.asarray(states)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", nargs="?", default=str(travel_desk("en")))
    parser.add_argument("--limit", type=int, help="examples a split")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--other", default="cpu")
    options = parser.parse_args()
    try:
        on_gpu = device_of(options.device).type == "cuda"
    except UsageError as error:
        parser.error(f"{error}\n  no figure can be taken here; --device cpu tries the script")
    try:
        source = open_source(options.source)
    except FusionkitError as error:
        parser.error(str(error))
    if options.limit:
        source = Source(source.name, {k: examples.limited(options.limit) for k, examples in source.splits.items()})
    with tempfile.TemporaryDirectory() as work:
        for number, (rows, dtype) in enumerate(KINDS):
            if dtype == "tf32" and not on_gpu:
                continue
            place = Path(work) / str(number)
            first, again = (rows_of(source, place / name, rows, dtype, options.device) for name in ("first", "again"))
            peer = rows_of(source, place / "peer", rows, "float32" if dtype == "tf32" else dtype, options.other)
            off = np.abs(first.astype(np.float64) - peer)
            same = np.mean(first.astype(np.float16) == peer.astype(np.float16))
            second = "equal" if np.array_equal(first, again) else "different"
            print(
                f"{rows} in {dtype}: a second encode is {second}; from "
                f"{options.other}: largest difference {off.max():.1e}, root mean square {np.sqrt(np.mean(off**2)):.1e} "
                f"(of the states {np.sqrt(np.mean(peer.astype(np.float64) ** 2)):.2f}), equal in float16 {same:.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
