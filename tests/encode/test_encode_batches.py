"""Batches as the encoder gets them: padding, filling, and the same bytes whatever the threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fusionkit.alignment import lay_rows
from fusionkit.encode import encode
from fusionkit.encode.batches import PartInput, forward
from fusionkit.encode.batching import LEAST_TOKENS, Batching
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.ragged import offsets_of
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import open_store

ONE_SEQUENCE = [(1, length) for length in (*range(1, 41), 63, 64, 65, 127, 128, 200, 511, 512)]
SHAPES = ONE_SEQUENCE + [(count, length) for count in range(2, 12) for length in range(1, 13)]
CPUINFO = Path("/proc/cpuinfo")
NOT_WITH_AMX = pytest.mark.xfail(
    CPUINFO.exists() and "amx_bf16" in CPUINFO.read_text(encoding="utf-8"),
    reason="oneDNN's bfloat16 products by AMX depend on the threads (docs/store-format.md)",
    strict=True,
)
LARGE = [(count, length) for count in (16, 37, 64, 150, 300, 600) for length in (1, 2, 5, 8, 11, 16)]


def given(*lengths: int) -> PartInput:
    """Sequences so long, of sub-tokens that differ."""
    offsets = offsets_of(np.array(lengths))
    count = int(offsets[-1])
    ids = np.random.default_rng(count).integers(1000, 20000, count)
    return PartInput(
        token_ids=ids,
        segments=np.arange(count) % 2,
        offsets=offsets,
        rows=lay_rows("tokens", offsets, np.zeros(count, dtype=np.int32), None),
        first_row=0,
        first_number=0,
        first_alike=np.full(len(lengths), -1),
    )


def test_a_batch_is_its_examples_side_by_side() -> None:
    inputs = given(1, 12, 11)
    ids, segments = inputs.token_ids.tolist(), inputs.segments.tolist()
    (batch,) = inputs.batches(inputs.unique(), Batching(100), pad_id=9)
    assert batch.examples.tolist() == [1, 2, 0]
    assert batch.token_ids.tolist() == [ids[1:13], [*ids[13:], 9], [ids[0], *[9] * 11]]
    assert batch.mask.tolist() == [[1] * 12, [*[1] * 11, 0], [1, *[0] * 11]]
    assert batch.segments.tolist() == [segments[1:13], [*segments[13:], 0], [segments[0], *[0] * 11]]


def test_a_small_batch_is_filled_with_its_own_examples() -> None:
    inputs = given(3, 5)
    (batch,) = inputs.batches(inputs.unique(), Batching(100), pad_id=9)
    assert batch.examples.tolist() == [1, 0]
    assert batch.token_ids.numel() == 7 * 5 >= LEAST_TOKENS
    assert batch.token_ids.tolist() == (4 * batch.token_ids[:2].tolist())[:7]
    assert batch.mask.tolist() == (4 * batch.mask[:2].tolist())[:7]


@pytest.fixture
def threads() -> Iterator[None]:
    """Whatever a test sets is put back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def states_by_threads(encoder: Encoder, count: int, length: int) -> list[torch.Tensor]:
    """The states of so many sequences that are so long, by 1, 2 and 4 threads."""
    inputs, found = given(*[length] * count), []
    for number in (1, 2, 4):
        torch.set_num_threads(number)
        batches = inputs.batches(inputs.unique(), Batching(count * length), encoder.pad_id)
        found.append(
            torch.cat([torch.stack(forward(encoder, batch))[:, : len(batch.examples)] for batch in batches], 1)
        )
    return found


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("bfloat16", marks=[pytest.mark.soak("products"), NOT_WITH_AMX])]
)
@pytest.mark.parametrize(
    "shapes", [SHAPES[::5], pytest.param(SHAPES + LARGE, marks=pytest.mark.soak("products"))], ids=["some", "all"]
)
@pytest.mark.usefixtures("threads")
def test_a_batch_has_the_same_states_whatever_the_threads(dtype: str, shapes: list[tuple[int, int]]) -> None:
    encoder = load_encoder("minilm", device="cpu", compute_dtype=dtype)
    different = []
    for count, length in shapes:
        one, two, four = states_by_threads(encoder, count, length)
        if not (torch.equal(one, two) and torch.equal(one, four)):
            different.append((count, length))
    assert different == []


@pytest.mark.usefixtures("threads")
def test_short_sentences_have_the_same_bytes_whatever_the_threads(tmp_path: Path) -> None:
    """Sentences of one to eight words, each length a few times: batches that were too small for one kernel."""
    words = ["the", "old", "red", "house", "on", "a", "hill", "stands"]
    lines = [f"{' '.join(words[:length])} {place}" for length in range(1, 9) for place in ("here", "there", "now")]
    source = tmp_path / "train.csv"
    source.write_text("text,label\n" + "".join(f"{line},{k % 2}\n" for k, line in enumerate(lines)))
    stores = []
    for number in (1, 2):
        torch.set_num_threads(number)
        opened, encoder = open_source(str(source)), load_encoder("minilm", device="cpu")
        encode(opened, guess_columns(opened), tmp_path / str(number), EncodeSpec(rows="tokens"), encoder)
        stores.append(open_store(tmp_path / str(number)).manifest["splits"])
    assert stores[0] == stores[1]  # the checksums of all chunks
