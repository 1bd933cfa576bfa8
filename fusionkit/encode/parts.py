"""One part of encoding: the states of one chunk, from sub-tokens to a durable file and its record.

An example that crosses a chunk's edge is encoded by both parts; each keeps its own rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fusionkit.encode.batches import Part, PartInput, PartReader
from fusionkit.encode.output_blocks import TORCH_DTYPES, OutputBlock, PartBuffer, is_finite
from fusionkit.encode.repeats import RepeatCache
from fusionkit.encode.rows import batch_rows, forward
from fusionkit.encoder import Encoder
from fusionkit.errors import EncoderError, StoreError
from fusionkit.files import parse_json, write_json
from fusionkit.places import Place, is_file, read_all, read_bytes, size_of, sizes_below
from fusionkit.ragged import flat_rows
from fusionkit.store.chunks import write_chunk, written_checksum
from fusionkit.store.layout import StatesLayout, chunk_path, part_path, states_path
from fusionkit.store.manifest import split_layout


class NotFiniteError(EncoderError):
    """States that the store's precision cannot hold, or that are no numbers at all."""


@dataclass(frozen=True)
class PartRecord:
    """What a finished part leaves behind.

    Attributes:
        tokens: sub-tokens it took. seconds: from reading its input to its durable chunk.
        crc32c, sizes: checksum and bytes of each array's file, by the array's name.
    """

    split: str
    chunk: int
    rows: int
    tokens: int
    seconds: float
    crc32c: dict[str, int]
    sizes: dict[str, int]


def all_parts(plan: dict[str, Any]) -> list[Part]:
    """Every part of a plan."""
    return [Part(split, chunk) for split in plan["splits"] for chunk in range(split_layout(plan, split).chunks)]


def finished_parts(store: Place, plan: dict[str, Any]) -> dict[Part, PartRecord]:
    """The records of the parts that are done: sound records, and behind each the chunks that it tells of."""
    contents = read_all(store / "parts", [part_path(store, part.split, part.chunk).name for part in all_parts(plan)])
    sizes = {split: sizes_below(states_path(store) / split) for split in plan["splits"]}
    found = {}
    for part in all_parts(plan):
        content = contents.get(part_path(store, part.split, part.chunk).name)
        if content is not None and (record := _sound_record(content, store, plan, part, sizes[part.split])):
            found[part] = record
    return found


def finished_part(store: Place, plan: dict[str, Any], part: Part) -> PartRecord | None:
    """The record of one part, if it is done; as :func:`finished_parts`, of which it asks for less."""
    path = part_path(store, part.split, part.chunk)
    if not is_file(path):
        return None
    layout = split_layout(plan, part.split)
    chunks = [chunk_path(store, part.split, part.chunk, array.name) for array in layout.arrays]
    top = f"{states_path(store) / part.split}/"
    sizes = {str(chunk).removeprefix(top): size_of(chunk) for chunk in chunks if is_file(chunk)}
    return _sound_record(read_bytes(path), store, plan, part, sizes)


def _sound_record(
    content: bytes, store: Place, plan: dict[str, Any], part: Part, sizes: dict[str, int]
) -> PartRecord | None:
    try:
        record = PartRecord(**parse_json(content, part_path(store, part.split, part.chunk)))
        return record if _is_sound(record, store, plan, part, sizes) else None
    except (StoreError, TypeError, AttributeError, OSError):
        return None


def _is_sound(record: PartRecord, store: Place, plan: dict[str, Any], part: Part, sizes: dict[str, int]) -> bool:
    layout = split_layout(plan, part.split)
    start, stop = layout.chunk_rows(part.chunk)
    names = [array.name for array in layout.arrays]
    return (
        (record.split, record.chunk, record.rows) == (part.split, part.chunk, stop - start)
        and type(record.tokens) is int
        and 0 <= record.tokens <= plan["splits"][part.split]["tokens"]
        and 0 <= record.seconds < float("inf")
        and list(record.crc32c) == list(record.sizes) == names
        and all(_is_there(record, store, part, name, sizes) for name in names)
    )


def _is_there(record: PartRecord, store: Place, part: Part, array: str, sizes: dict[str, int]) -> bool:
    chunk = chunk_path(store, part.split, part.chunk, array)
    if sizes.get(str(chunk).removeprefix(f"{states_path(store) / part.split}/")) != record.sizes[array]:
        return False
    # An object on remote storage is whole or absent; a request a chunk would say no more.
    return not isinstance(chunk, Path) or written_checksum(chunk) == record.crc32c[array]


def compute_part(
    plan: dict[str, Any],
    encoder: Encoder,
    part: Part,
    given: PartInput,
    repeats: RepeatCache,
    staging: PartBuffer,
    on_tokens: Callable[[int], None],
) -> None:
    """Encode the examples of a part; their rows are in ``staging`` afterwards.

    Args:
        repeats: gives the rows of the examples that come more than once.
        on_tokens: called with the sub-tokens of each batch that is done.
    """
    layout = split_layout(plan, part.split)
    staging.begin(layout)
    lengths = np.diff(given.offsets)
    for batch in given.batches(given.unique(), plan["batch_tokens"], encoder.pad_id):
        states = forward(encoder, batch)
        picked, ends = flat_rows(given.rows.row_offsets, batch.examples)
        line = np.repeat(np.arange(len(batch.examples)), np.diff(ends))
        target = picked + given.first_row
        keep = given.rows.mask[picked] & (target >= 0) & (target < layout.rows_per_chunk)
        for k, rows in batch_rows(states, plan["layers"], given, batch, picked[keep], line[keep]):
            staging.put(k, rows)
        # Now, not when the next pass is through: that one then has the same memory, which the caches still hold.
        del states, rows
        staging.placed(target[keep])
        on_tokens(int(lengths[batch.examples].sum()))
    again = given.repeated()
    kept = repeats.rows_of(part, given, np.unique(given.first_alike[again]))
    for example in again.tolist():
        rows_of = kept[int(given.first_alike[example])]
        start, stop = (given.rows.row_offsets[example : example + 2] + given.first_row).tolist()
        low, high = max(start, 0), min(stop, layout.rows_per_chunk)  # the part's edges may cut it
        inside = slice(low - start, high - start)
        staging.put_kept(rows_of.states[:, inside], None if rows_of.scales is None else rows_of.scales[:, inside])
        staging.placed(np.arange(low, high))
    on_tokens(int(lengths[again].sum()))


def finish_part(
    store: Place, plan: dict[str, Any], part: Part, block: OutputBlock, tokens: int, start: float
) -> PartRecord:
    """Check a part's states, write its chunks durably, then record it.

    Raises:
        NotFiniteError: states that are not finite in the store's precision; nothing is written.
    """
    layout = split_layout(plan, part.split)
    if not is_finite(block):
        raise NotFiniteError(f"part {part.chunk} of {part.split} is not finite in {plan['dtype']}")
    values = block.arrays()
    stamps = {
        array.name: write_chunk(
            chunk_path(store, part.split, part.chunk, array.name), values[array.name], array, layout.compression
        )
        for array in layout.arrays
    }
    first, last = layout.chunk_rows(part.chunk)
    record = PartRecord(
        part.split,
        part.chunk,
        last - first,
        tokens,
        round(time.perf_counter() - start, 3),
        {name: stamp.crc32c for name, stamp in stamps.items()},
        {name: stamp.size for name, stamp in stamps.items()},
    )
    write_json(part_path(store, part.split, part.chunk), asdict(record))
    return record


class PartMaker:
    """Makes parts of one store, each from its input to its record, one after another; arrays are opened once."""

    def __init__(self, store: Place, plan: dict[str, Any], encoder: Encoder) -> None:
        self._store, self._plan, self._encoder = store, plan, encoder
        self._reader = PartReader(store, plan)
        self._repeats = RepeatCache(store, plan, encoder, self._reader, TORCH_DTYPES[plan["dtype"]])
        self._staging = staging_for(plan, encoder)
        self._block: OutputBlock | None = None

    def make(
        self, part: Part, on_tokens: Callable[[int], None] = lambda _: None, ready: Callable[[], object] = lambda: None
    ) -> PartRecord:
        """One part.

        Args:
            ready: called before anything is written; what it raises ends the part.

        Raises:
            NotFiniteError: with the layer, its largest value and the dtype to use.
        """
        start = time.perf_counter()
        given = self._reader.read(part)
        compute_part(self._plan, self._encoder, part, given, self._repeats, self._staging, on_tokens)
        self._block = self._staging.hand_over()(self._block)
        ready()
        try:
            record = finish_part(self._store, self._plan, part, self._block, given.tokens, start)
        except NotFiniteError as error:
            raise not_finite(self._store, self._plan, self._encoder, part) from error
        self._repeats.written(part)
        return record


def encode_part(
    store: Place, plan: dict[str, Any], encoder: Encoder, part: Part, on_tokens: Callable[[int], None]
) -> PartRecord:
    """One part by itself; errors as :meth:`PartMaker.make`."""
    return PartMaker(store, plan, encoder).make(part, on_tokens)


def staging_for(plan: dict[str, Any], encoder: Encoder, dtype: str | None = None) -> PartBuffer:
    """Room for any part of a plan, in the store's precision unless another is given."""
    layouts: list[StatesLayout] = [split_layout(plan, split) for split in plan["splits"]]
    return PartBuffer(layouts, TORCH_DTYPES[dtype or plan["dtype"]], encoder.device)


def not_finite(store: Place, plan: dict[str, Any], encoder: Encoder, part: Part) -> NotFiniteError:
    """The full account of a part that :func:`finish_part` refused: its states once more, in float32."""
    staging, reader = staging_for(plan, encoder, "float32"), PartReader(store, plan)
    repeats = RepeatCache(store, plan, encoder, reader, torch.float32)
    compute_part(plan, encoder, part, reader.read(part), repeats, staging, lambda _: None)
    block = staging.hand_over()(None).states  # [layers, rows, hidden]; the staging itself has rows of an older part
    kept = torch.float32 if plan["dtype"] == "int8" else TORCH_DTYPES[plan["dtype"]]
    at = next(k for k in range(len(block)) if not bool(torch.isfinite(block[k].to(kept)).all()))
    largest = float(block[at].nan_to_num(0.0, posinf=torch.inf, neginf=-torch.inf).abs().max())
    nan = bool(torch.isnan(block[at]).any())
    return NotFiniteError(
        f"layer {plan['layers'][at]} of encoder {plan['encoder']['name']!r} is not finite in {plan['dtype']}",
        expected=f"numbers up to {torch.finfo(kept).max:g}",
        received="NaN" if nan else f"a largest value of {largest:g}",
        remedy="encode with --dtype bfloat16 or float32"
        if not nan and np.isfinite(largest)
        else "check the encoder's weights, and --compute-dtype",
    )
