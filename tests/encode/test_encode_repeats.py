"""Repeated sequences: encoded once, whichever parts they come in, and stored for each example."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from fusionkit.alignment import lay_rows
from fusionkit.encode import EncodeProgress, encode, repeats
from fusionkit.encode.batches import Part, PartInput
from fusionkit.encode.part_records import PartRecord
from fusionkit.encode.pipeline import serial_parts
from fusionkit.encode.repeats import DuplicateFinder
from fusionkit.encoder import Encoder, Tokenized
from fusionkit.sources import Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import open_store

COMMON = [["ab", "c"], ["ef"], ["gh", "ab", "c", "d"]]


def alike(sequences: list[list[int]], segments: list[list[int]] | None = None) -> list[int]:
    """What is found among sequences, two at a time."""
    found = DuplicateFinder()
    for start in range(0, len(sequences), 2):
        few = sequences[start : start + 2]
        marks = segments[start : start + 2] if segments else [[0] * len(sequence) for sequence in few]
        offsets = np.cumsum([0, *map(len, few)]).astype(np.int64)
        flat = np.array([token for sequence in few for token in sequence], np.int32)
        second = np.array([mark for each in marks for mark in each], np.uint8)
        words = np.zeros(len(flat), np.int32)
        found.add(Tokenized(flat, words, second, offsets, np.zeros(len(few), bool)), offsets)
    return list(found.first().tolist())


def test_examples_that_are_alike_are_told_by_the_first_of_them() -> None:
    assert alike([[5, 6], [7, 8, 9], [5, 6], [5], [7, 8], [5, 6], [5]]) == [0, -1, 0, 3, -1, 0, 3]


def test_the_same_sub_tokens_in_other_segments_are_another_sequence() -> None:
    assert alike([[5, 6], [5, 6]], [[0, 0], [0, 1]]) == [-1, -1]


def test_empty_texts_are_alike_in_nothing() -> None:
    assert alike([[5], [], [], [5]]) == [0, -1, -1, 0]


def test_nothing_is_alike_among_no_examples() -> None:
    assert alike([]) == []


def test_a_part_splits_into_what_is_alone_and_what_is_not() -> None:
    offsets = np.array([0, 2, 5, 7, 8], dtype=np.int64)
    rows = lay_rows("tokens", offsets, np.zeros(8, np.int32), None)
    first_alike = np.array([11, -1, 11, 13])
    part = PartInput(np.arange(8), np.zeros(8, dtype=np.int64), offsets, rows, 0, 10, first_alike)
    assert part.unique().tolist() == [1]
    assert part.repeated().tolist() == [0, 2, 3]
    assert part.owned().tolist() == [3]  # the first of those like number 11 is no example of theirs


@pytest.fixture
def source() -> Source:
    """Three sentences that come again and again, in both splits, among others that come once."""
    letters = [a + b for a in "abcdefgh" for b in "abcdefgh"]
    train = [common for k in range(20) for common in ([letters[k], letters[k + 1]], COMMON[k % 3])]
    validation = [COMMON[2], ["ab"], COMMON[0], ["ef", "ef"], COMMON[1], COMMON[1]]
    return Source("again", {"train": pa.table({"tokens": train}), "validation": pa.table({"tokens": validation})})


@pytest.fixture
def passes(encoder: Encoder) -> tuple[Encoder, Counter[tuple[int, ...]]]:
    """The encoder, and how often it saw each sequence."""
    seen: Counter[tuple[int, ...]] = Counter()

    class Counted(Encoder):
        def forward(self, token_ids: Any, attention_mask: Any, segments: Any) -> Any:
            batch = zip(token_ids.tolist(), attention_mask.tolist(), strict=True)
            seen.update({tuple(ids[: sum(mask)]) for ids, mask in batch})  # a small batch is filled with its own
            return super().forward(token_ids, attention_mask, segments)

    fields = {field.name: getattr(encoder, field.name) for field in dataclasses.fields(encoder)}
    return Counted(**fields), seen


def encoded(source: Source, encoder: Encoder, out: Path, **how: Any) -> Path:
    run_parts = how.pop("run_parts", None)
    encode(source, guess_columns(source), out, EncodeSpec(**how), encoder, run_parts=run_parts)
    return out


@pytest.mark.usefixtures("small_parts")
def test_each_sequence_is_encoded_once_whatever_part_it_comes_in(
    source: Source, passes: tuple[Encoder, Counter[tuple[int, ...]]], tmp_path: Path
) -> None:
    encoder, seen = passes
    store = open_store(encoded(source, encoder, tmp_path / "s", rows="words", dtype="float32"))
    chunks = [len(fields["chunks"]["hidden_states"]) for fields in store.manifest["splits"].values()]
    assert chunks[0] > 3
    assert chunks[1] > 0
    crossing = set()
    for split, examples in source.splits.items():
        height = store.manifest["splits"][split]["rows_per_chunk"]
        ids_of = encoder.tokenizer(examples.head()["tokens"].to_pylist(), is_split_into_words=True)["input_ids"]
        for example, ids in enumerate(ids_of):
            start, stop = store[split].row_offsets[example : example + 2]
            if start // height != (stop - 1) // height:
                crossing.add(tuple(ids))
    commons = {tuple(ids) for ids in encoder.tokenizer(COMMON, is_split_into_words=True)["input_ids"]}
    assert {seen[ids] for ids in commons} == {1}
    # Alone in the store but on a part's edge, an example is encoded by both parts.
    assert {ids for ids, count in seen.items() if count > 1} == crossing - commons
    assert len(seen) == 20 + 2 + 3


@pytest.mark.product
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("rows", ["tokens", "words", "words-mean", "cls", "mean"])
@pytest.mark.usefixtures("small_parts")
def test_every_repeat_has_the_states_of_a_pass_of_its_own(
    source: Source, encoder: Encoder, tmp_path: Path, rows: str, dtype: str
) -> None:
    store = open_store(encoded(source, encoder, tmp_path / "s", rows=rows, dtype=dtype))
    close = {"float32": 1e-5, "float16": 2e-3, "int8": 0.03}[dtype]
    for split, examples in source.splits.items():
        for example, words in enumerate(examples.head()["tokens"].to_pylist()):
            alone = encoder.tokenize([words], None, 64)
            ids = torch.from_numpy(alone.token_ids.astype(np.int64))[None]
            states = torch.stack(encoder.forward(ids, torch.ones_like(ids), torch.zeros_like(ids)), dim=2)[0]
            laid = lay_rows(rows, alone.token_offsets, alone.word_index, np.array([len(words)]))
            expected = torch.stack([states[a:b].mean(0) for a, b in zip(laid.first, laid.last, strict=True)])
            found = store[split].take([example]).hidden_states.float()
            torch.testing.assert_close(found, expected, rtol=close, atol=close)


@pytest.mark.usefixtures("small_parts")
def test_parts_in_any_order_and_with_nothing_kept_give_the_same_bytes(
    source: Source, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    assert_same: Callable[[Path, Path], None],
) -> None:  # fmt: skip
    def backwards(*of: Any) -> Iterator[PartRecord]:
        store, plan, parts, watch = of
        assert isinstance(parts[0], Part)
        yield from serial_parts(encoder, stop=lambda: False)(store, plan, parts[::-1], watch)

    def one_by_one(store: Any, plan: Any, parts: list[Part], watch: EncodeProgress) -> Iterator[PartRecord]:
        for part in parts:
            yield from serial_parts(encoder, stop=lambda: False)(store, plan, [part], watch)

    usual = encoded(source, encoder, tmp_path / "usual")
    assert_same(encoded(source, encoder, tmp_path / "backwards", run_parts=backwards), usual)
    assert_same(encoded(source, encoder, tmp_path / "one", run_parts=one_by_one), usual)
    monkeypatch.setattr(repeats, "CACHED_BYTES", 1)
    assert_same(encoded(source, encoder, tmp_path / "forgetful"), usual)
    assert_same(encoded(source, encoder, tmp_path / "both", run_parts=backwards), usual)


@pytest.mark.usefixtures("small_parts")
def test_what_is_no_longer_in_memory_is_copied_from_the_chunks(
    source: Source, passes: tuple[Encoder, Counter[tuple[int, ...]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a part with many such sequences would run a batch for each."""
    encoder, seen = passes
    monkeypatch.setattr(repeats, "CACHED_BYTES", 1)

    def one_by_one(store: Any, plan: Any, parts: list[Part], watch: EncodeProgress) -> Iterator[PartRecord]:
        for part in parts:  # a new memory for each
            yield from serial_parts(encoder, stop=lambda: False)(store, plan, [part], watch)

    encoded(source, encoder, tmp_path / "s", rows="words", run_parts=one_by_one)
    commons = {tuple(ids) for ids in encoder.tokenizer(COMMON, is_split_into_words=True)["input_ids"]}
    # Once more where its home's edge cuts one and the part behind needs the other half.
    assert max(seen[ids] for ids in commons) <= 2


@pytest.mark.usefixtures("small_parts")
def test_a_damaged_chunk_is_not_copied_from(
    source: Source, encoder: Encoder, tmp_path: Path, assert_same: Callable[[Path, Path], None]
) -> None:
    usual = encoded(source, encoder, tmp_path / "usual", rows="words")
    chunk = "states.zarr/train/hidden_states/c/0/0/0"

    def spoiling(store: Any, plan: Any, parts: list[Part], watch: EncodeProgress) -> Iterator[PartRecord]:
        yield from serial_parts(encoder, stop=lambda: False)(store, plan, parts[:1], watch)
        whole = (store / chunk).read_bytes()
        (store / chunk).write_bytes(bytes(byte ^ 64 for byte in whole[:-4]) + whole[-4:])
        yield from serial_parts(encoder, stop=lambda: False)(store, plan, parts[1:], watch)
        (store / chunk).write_bytes(whole)

    assert_same(encoded(source, encoder, tmp_path / "s", rows="words", run_parts=spoiling), usual)


@pytest.mark.usefixtures("small_parts")
def test_where_chunks_are_compressed_a_part_keeps_to_itself(
    source: Source, passes: tuple[Encoder, Counter[tuple[int, ...]]], tmp_path: Path
) -> None:
    """A few rows of another part would cost the decoding of its whole chunk."""
    encoder, seen = passes
    store = open_store(encoded(source, encoder, tmp_path / "s", rows="words", compress="zstd"))
    parts = sum(len(fields["chunks"]["hidden_states"]) for fields in store.manifest["splits"].values())
    counts = [seen[tuple(ids)] for ids in encoder.tokenizer(COMMON, is_split_into_words=True)["input_ids"]]
    assert 1 < max(counts) <= parts + 1
