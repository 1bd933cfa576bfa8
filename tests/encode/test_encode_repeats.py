"""Repeated sequences: encoded once in a part, stored for each example."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from fusionkit.alignment import lay_rows
from fusionkit.encode import encode
from fusionkit.encode.batches import PartInput
from fusionkit.encoder import Encoder
from fusionkit.sources import Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import open_store


def part_of(sequences: list[list[int]], segments: list[list[int]] | None = None) -> PartInput:
    """A part whose rows are the sub-tokens of these sequences."""
    flat = [token for sequence in sequences for token in sequence]
    second = [mark for marks in segments for mark in marks] if segments else [0] * len(flat)
    offsets = np.cumsum([0, *map(len, sequences)]).astype(np.int64)
    rows = lay_rows("tokens", offsets, np.zeros(len(flat), np.int32), None)
    return PartInput(torch.tensor(flat), torch.tensor(second), offsets, rows, 0)


def test_a_sequence_that_comes_thrice_stands_in_one_line_for_three_examples() -> None:
    part = part_of([[5, 6], [7, 8, 9], [5, 6], [5], [5, 6]])
    lines: dict[int, list[int]] = {}
    for batch in part.batches(budget=6, pad_id=0):
        for example, line in zip(batch.examples.tolist(), batch.lines.tolist(), strict=True):
            lines[example] = batch.token_ids[line][batch.mask[line] == 1].tolist()
    assert lines == {0: [5, 6], 1: [7, 8, 9], 2: [5, 6], 3: [5], 4: [5, 6]}
    assert sum(len(batch.mask) for batch in part.batches(budget=6, pad_id=0)) == 3


def test_the_same_sub_tokens_in_other_segments_are_another_sequence() -> None:
    part = part_of([[5, 6], [5, 6]], [[0, 0], [0, 1]])
    assert sum(len(batch.mask) for batch in part.batches(budget=64, pad_id=0)) == 2


def test_an_empty_text_is_in_no_batch() -> None:
    part = part_of([[5, 6], [], [7]])
    examples = [example for batch in part.batches(budget=64, pad_id=0) for example in batch.examples.tolist()]
    assert sorted(examples) == [0, 2]


def test_every_repeat_has_the_states_of_a_pass_of_its_own(tmp_path: Path, encoder: Encoder) -> None:
    texts = [["abc", "d"], ["ef"], ["abc", "d"], ["gh", "ab", "c"], ["ef"]]
    source = Source("repeats", {"train": pa.table({"tokens": texts})})
    encode(source, guess_columns(source), tmp_path / "s", EncodeSpec(rows="words", dtype="float32"), encoder)
    train = open_store(tmp_path / "s")["train"]
    for example, words in enumerate(texts):
        batch = encoder.tokenize([words], None, 64)
        ids = torch.from_numpy(batch.token_ids.astype(np.int64))[None]
        states = torch.stack(encoder.forward(ids, torch.ones_like(ids), torch.zeros_like(ids)), dim=2)[0]
        firsts = [batch.word_index.tolist().index(word) for word in range(len(words))]
        torch.testing.assert_close(train.take([example]).hidden_states, states[firsts], rtol=1e-5, atol=1e-5)
