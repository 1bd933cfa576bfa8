"""Pairs of texts as two sequences: each distinct text once, the same bytes however often an encode is interrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr

from fusionkit.encode import EncodeProgress, EncodeReport, repeats
from fusionkit.encode import estimate as estimating
from fusionkit.encode.batches import Part
from fusionkit.encode.estimate import estimate
from fusionkit.encode.part_records import PartRecord
from fusionkit.encode.pipeline import serial_parts
from fusionkit.encode.repair import compare_sample, damaged_parts, repair
from fusionkit.encoder import Encoder
from fusionkit.errors import DataError, StoppedError, UsageError
from fusionkit.sources import Source, examples, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import open_store, verify_store

Encoding = Callable[..., EncodeReport]
Same = Callable[[Path, Path], None]


def columns_of(source: Source, split: str) -> tuple[list[str], list[str]]:
    table = source.splits[split].head()
    return table["sentence1"].to_pylist(), table["sentence2"].to_pylist()


def distinct(source: Source, split: str) -> list[str]:
    """Every text once, in the order they are read: the first of an example, then the second."""
    found: list[str] = []
    for both in zip(*columns_of(source, split), strict=True):
        found += [text for text in dict.fromkeys(both) if text not in found]
    return found


@pytest.mark.parametrize("rows", ["tokens", "cls", "mean"])
def test_each_distinct_text_is_one_sequence_and_an_example_says_which_two_it_has(
    pairs: Source, encoded: Encoding, folder: Path, alone: Callable[..., Any], tmp_path: Path, rows: str
) -> None:
    encoded(pairs, tmp_path / "s", pair_as="two", rows=rows, dtype="float32")
    store, compared = open_store(tmp_path / "s"), 0
    assert store.sides == 2
    for name in store.splits:
        split, texts = store[name], distinct(pairs, name)
        both = list(zip(*columns_of(pairs, name), strict=True))
        assert split.pairs.tolist() == [[texts.index(one), texts.index(other)] for one, other in both]
        assert (len(split), split.sequences) == (len(both), len(texts))
        assert len(split.row_offsets) == len(split.token_offsets) == len(texts) + 1
        for number, text in enumerate(texts):
            states = alone(str(folder), text)[0].swapaxes(0, 1)  # [tokens, layers, hidden]
            expected = {"tokens": states, "cls": states[:1], "mean": states.mean(0, keepdims=True)}[rows]
            found = split.take_sequences([number])
            np.testing.assert_allclose(found.hidden_states.numpy(), expected, atol=2e-6)
            assert found.row_mask.all()
            compared += 1
        assert split.examples["sentence1"].tolist() == [one for one, _ in both]
    assert compared == len(distinct(pairs, "train")) + len(distinct(pairs, "test")) == 42 + 11


def test_take_gives_both_sequences_of_each_example_in_order(pairs: Source, encoded: Encoding, tmp_path: Path) -> None:
    encoded(pairs, tmp_path / "s", pair_as="two", rows="tokens")
    split = open_store(tmp_path / "s")["train"]
    chosen = [34, 2, -1, 30]
    taken = split.take(chosen, layers=[3, 0])
    assert len(taken) == 8
    for k, example in enumerate(chosen):
        for side in (0, 1):
            alone = split.take_sequences([split.pairs[example, side]])
            assert (taken[2 * k + side] == alone.hidden_states[:, [3, 0]]).all()
    # Example 30 is a text beside itself.
    assert (taken[6] == taken[7]).all()
    assert len(split.take(np.arange(35) < 2)) == 4
    with pytest.raises(UsageError, match="no such example in train") as caught:
        split.take([35])
    assert caught.value.expected == "0 … 34"
    with pytest.raises(UsageError, match="no such sequence in train"):
        split.take_sequences([42])


def test_as_one_an_example_is_its_own_sequence(pairs: Source, encoded: Encoding, tmp_path: Path) -> None:
    encoded(pairs, tmp_path / "s", pair_as="one", rows="tokens")
    store = open_store(tmp_path / "s")
    split = store["train"]
    assert (store.sides, len(split), split.sequences) == (1, 35, 35)
    assert split.pairs.tolist() == [[number] for number in range(35)]
    assert (split.take([3, 4]).hidden_states == split.take_sequences([3, 4]).hidden_states).all()
    segments = np.asarray(zarr.open_array(tmp_path / "s" / "states.zarr" / "train" / "segments", mode="r")[...])
    assert segments.any()
    assert not (tmp_path / "s" / "states.zarr" / "train" / "pairs").exists()


def test_sequences_with_the_same_sub_tokens_are_encoded_once_in_all_splits(
    pairs: Source, encoded: Encoding, encoder: Encoder, tmp_path: Path
) -> None:
    encoded(pairs, tmp_path / "s", pair_as="two", rows="tokens")
    texts = [text for split in ("train", "test") for text in distinct(pairs, split)]
    ids = [tuple(encoder.tokenizer(text)["input_ids"]) for text in texts]
    expected = [ids.index(each) if ids.count(each) > 1 else -1 for each in ids]
    found = [
        np.asarray(zarr.open_array(tmp_path / "s" / "states.zarr" / split / "first_alike", mode="r")[...])
        for split in ("train", "test")
    ]
    assert np.concatenate(found).tolist() == expected
    assert sum(number >= 0 for number in expected) == 21  # ten of test are in train, one is there in capitals too


def test_pieces_of_any_size_give_the_same_bytes(
    pairs: Source, encoded: Encoding, assert_same: Same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a piece holds no text that is new."""
    encoded(pairs, tmp_path / "whole", pair_as="two")
    monkeypatch.setattr(examples, "PIECE_EXAMPLES", 1)
    encoded(pairs, tmp_path / "pieces", pair_as="two")
    assert_same(tmp_path / "pieces", tmp_path / "whole")


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("rows", ["tokens", "mean"])
def test_an_interrupted_encode_ends_with_the_same_bytes(
    pairs: Source, encoded: Encoding, assert_same: Same, tmp_path: Path, rows: str
) -> None:
    how = {"pair_as": "two", "rows": rows}
    report = encoded(pairs, tmp_path / "usual", **how)
    parts = sum(len(split["chunks"]["hidden_states"]) for split in report.manifest["splits"].values())
    assert parts >= (8 if rows == "tokens" else 2)
    for done in {1, parts // 2, parts - 1}:
        out = tmp_path / f"stopped-{done}"
        answers = iter([False] * done + [True])
        with pytest.raises(StoppedError):
            encoded(pairs, out, stop=lambda answers=answers: next(answers), **how)
        assert encoded(pairs, out, **how).outcome == "resumed"
        assert_same(out, tmp_path / "usual")


@pytest.mark.usefixtures("small_parts")
def test_parts_in_any_order_and_with_nothing_kept_give_the_same_bytes(
    pairs: Source, encoded: Encoding, encoder: Encoder, assert_same: Same, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def backwards(store: Any, plan: Any, parts: list[Part], watch: EncodeProgress) -> Iterator[PartRecord]:
        yield from serial_parts(encoder, stop=lambda: False)(store, plan, parts[::-1], watch)

    how = {"pair_as": "two", "rows": "tokens"}
    encoded(pairs, tmp_path / "usual", **how)
    monkeypatch.setattr(repeats, "CACHED_BYTES", 1)
    encoded(pairs, tmp_path / "s", run_parts=backwards, **how)
    assert_same(tmp_path / "s", tmp_path / "usual")


@pytest.mark.usefixtures("small_parts")
def test_compressed_stores_hold_the_same_numbers(pairs: Source, encoded: Encoding, tmp_path: Path) -> None:
    """Where chunks are compressed, each part keeps to itself: what is alike is looked for inside it alone."""
    for compress in ("none", "zstd"):
        encoded(pairs, tmp_path / compress, pair_as="two", rows="tokens", dtype="float32", compress=compress)
    raw, squeezed = (open_store(tmp_path / compress) for compress in ("none", "zstd"))
    for split in raw.splits:
        assert raw[split].pairs.tolist() == squeezed[split].pairs.tolist()
        taken = [store[split].take(np.arange(6)).hidden_states for store in (raw, squeezed)]
        np.testing.assert_allclose(taken[0].numpy(), taken[1].numpy(), atol=2e-6)


@pytest.mark.usefixtures("small_parts")
def test_damage_is_found_and_repaired_to_the_same_bytes(
    pairs: Source, encoded: Encoding, encoder: Encoder, assert_same: Same, tmp_path: Path
) -> None:
    out = tmp_path / "s"
    encoded(pairs, out, pair_as="two", rows="tokens")
    shutil.copytree(out, tmp_path / "usual")
    names = {f"states.zarr/{split}/pairs/c/0/0" for split in ("train", "test")}
    assert names <= set(json.loads((out / "manifest.json").read_text())["files"])
    for chunk in ("states.zarr/train/hidden_states/c/2/0/0", "states.zarr/test/hidden_states/c/0/0/0"):
        (out / chunk).write_bytes((out / chunk).read_bytes()[::-1])
    faults = {each.path: each.fault for each in verify_store(out) if each.fault is not None}
    assert len(faults) == 2
    assert repair(out, damaged_parts(out, faults), encoder) == []
    assert_same(out, tmp_path / "usual")


def test_a_sample_is_compared_by_sequences(pairs: Source, encoded: Encoding, encoder: Encoder, tmp_path: Path) -> None:
    encoded(pairs, tmp_path / "s", pair_as="two", rows="tokens", dtype="float32")
    seen: list[int] = []
    forward = Encoder.forward

    def counted(self: Encoder, *given: Any) -> Any:
        seen.append(len(given[0]))
        return forward(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "forward", counted)
        differences = compare_sample(open_store(tmp_path / "s"), encoder, 1000)
    assert len(seen) == 53  # every sequence, and none for each example that has it
    assert all(each.largest < 1e-5 and each.cosine > 0.99999 for each in differences)


def test_an_estimate_counts_sequences(
    pairs: Source, encoded: Encoding, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, columns = EncodeSpec(pair_as="two", rows="tokens"), guess_columns(pairs)
    found = estimate(pairs, columns, spec, encoder)
    manifest = encoded(pairs, tmp_path / "s", pair_as="two", rows="tokens").manifest
    names = ("examples", "sequences", "rows", "tokens")
    assert found.exact
    assert found.splits == {
        split: {name: fields[name] for name in names} for split, fields in manifest["splits"].items()
    }
    files = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    assert found.bytes == pytest.approx(sum(path.stat().st_size for path in files), rel=0.1)
    assert found.choices["--rows mean or cls"] == pytest.approx(
        estimate(pairs, columns, EncodeSpec(pair_as="two", rows="mean"), encoder).bytes, rel=0.1
    )
    monkeypatch.setattr(estimating, "SAMPLE_EXAMPLES", 20)
    scaled = estimate(pairs, columns, spec, encoder)
    assert not scaled.exact
    assert (scaled.splits["train"]["examples"], scaled.splits["train"]["sequences"]) == (35, 42)  # counted, not scaled


def test_an_estimate_of_pairs_without_a_text_is_refused_as_an_encode_is(
    encoded: Encoding, encoder: Encoder, tmp_path: Path
) -> None:
    table = pa.table({"sentence1": ["a", "b"], "sentence2": ["c", None], "label": [0, 1]})
    broken = Source("broken", {"train": table})
    for work in (
        lambda: estimate(broken, guess_columns(broken), EncodeSpec(pair_as="two"), encoder),
        lambda: encoded(broken, tmp_path / "s", pair_as="two"),
    ):
        with pytest.raises(DataError, match="train, example 1: column 'sentence2' has no value"):
            work()


def test_xarray_opens_a_split_whole(pairs: Source, encoded: Encoding, tmp_path: Path) -> None:
    encoded(pairs, tmp_path / "s", pair_as="two", rows="tokens")
    with xr.open_zarr(tmp_path / "s" / "states.zarr" / "train", consolidated=False, chunks=None) as dataset:
        assert dataset["pairs"].dims == ("examples", "sides")
        assert dataset["first_alike"].dims == ("sequences",)
        assert (dataset.sizes["examples"], dataset.sizes["sides"], dataset.sizes["sequences"]) == (35, 2, 42)
        assert dataset["pairs"].values.tolist() == open_store(tmp_path / "s")["train"].pairs.tolist()
