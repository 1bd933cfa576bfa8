"""Words without a sub-token, words beyond the maximum length, examples without words or text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import models, pre_tokenizers, trainers

from fusionkit.encode import EncodeReport
from fusionkit.encoder import load_encoder
from fusionkit.errors import UsageError
from fusionkit.sources import Source
from fusionkit.store import open_store

Encoding = Callable[..., EncodeReport]
Alone = Callable[..., tuple[NDArray[np.float32], list[int | None]]]
hf: Any = transformers
WORDS = [["ab", "\u200b", "c"], [], ["\u200b"], ["abcd", "ef", "ghij"], ["a", "b", "c", "d", "e"]]
# With 8 sub-tokens at most, 6 between the special ones, of a letter each.
MASK = [[1, 0, 1], [], [0], [1, 1, 0], [1, 1, 1, 1, 1]]
TAGS = [["O"] * len(words) for words in WORDS]


class Heard:
    """Keeps what the user is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        return

    def advance(self, count: int) -> None:
        return

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def source() -> Source:
    column = pa.array(WORDS, pa.list_(pa.string()))
    return Source("words", {"train": pa.table({"tokens": column, "tags": pa.array(TAGS, pa.list_(pa.string()))})})


@pytest.mark.parametrize("rows", ["words", "words-mean"])
def test_words_without_a_sub_token_keep_their_row_masked_and_zero(
    source: Source, encoded: Encoding, folder: Path, alone: Alone, tmp_path: Path, rows: str
) -> None:
    encoded(source, tmp_path / "s", rows=rows, max_length=8, dtype="float32")
    split = open_store(tmp_path / "s")["train"]
    assert split.row_offsets.tolist() == [0, 3, 3, 4, 7, 12]
    assert split.row_mask.tolist() == [bool(mark) for row in MASK for mark in row]
    batch = split.take(range(5))
    assert batch.row_mask.tolist() == split.row_mask.tolist()
    for i, (words, marks) in enumerate(zip(WORDS, MASK, strict=True)):
        if not words:
            assert batch[i].shape == (0, 4, 16)
            continue
        states, word_ids = alone(str(folder), words, limit=8)
        for word, mark in enumerate(marks):
            at = [k for k, w in enumerate(word_ids) if w == word]
            assert bool(at) == bool(mark)
            expected = states[:, at[:1] if rows == "words" else at].mean(axis=1) if at else np.zeros((4, 16))
            np.testing.assert_allclose(batch[i][word].numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", ["words", "words-mean", "tokens", "cls", "mean"])
def test_lost_words_and_cut_texts_are_counted_and_told(
    source: Source, encoded: Encoding, tmp_path: Path, rows: str
) -> None:
    heard = Heard()
    fields = encoded(source, tmp_path / "s", rows=rows, max_length=8, progress=heard).manifest["splits"]["train"]
    assert (fields["examples"], fields["masked"], fields["cut"]) == (5, 3, 1)
    # Letters and two special tokens an example, the fourth cut to 8.
    assert fields["tokens"] == (3 + 2) + 2 + 2 + 8 + (5 + 2)
    assert fields["rows"] == {"words": 12, "words-mean": 12, "tokens": 24, "cls": 5, "mean": 5}[rows]
    assert [line for line in heard.lines if "3 words without a sub-token" in line]
    assert [line for line in heard.lines if "1 text cut to 8 sub-tokens" in line]


def test_nothing_is_told_where_nothing_is_lost(encoded: Encoding, tmp_path: Path) -> None:
    heard = Heard()
    source = Source("s", {"train": pa.table({"id": ["x"], "tokens": [["ab", "c"]], "tags": [["O", "O"]]})})
    fields = encoded(source, tmp_path / "s", progress=heard).manifest["splits"]["train"]
    assert (fields["masked"], fields["cut"], heard.lines) == (0, 0, [])


def test_a_split_without_any_row_is_a_store_all_the_same(encoded: Encoding, tmp_path: Path) -> None:
    empty = pa.array([[], []], pa.list_(pa.string()))
    encoded(Source("s", {"train": pa.table({"tokens": empty, "tags": empty})}), tmp_path / "s", rows="words")
    split = open_store(tmp_path / "s")["train"]
    assert split.hidden_states.shape == (0, 4, 16)
    assert len(split) == 2
    assert split.take([1, 0]).hidden_states.shape == (0, 4, 16)


@pytest.mark.parametrize("rows", ["tokens", "last", "mean"])
def test_an_empty_text_of_a_decoder_has_no_states(encoded: Encoding, tmp_path: Path, rows: str) -> None:
    """GPT-2's tokenizer adds nothing: no sub-token, so a masked row of zeros, or none."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(["ab cd"], trainers.BpeTrainer(initial_alphabet=letters, show_progress=False))
    torch.manual_seed(0)
    model = hf.GPT2Model(hf.GPT2Config(vocab_size=raw.get_vocab_size(), n_positions=32, n_embd=16, n_layer=2, n_head=2))
    model.save_pretrained(tmp_path / "gpt2")
    hf.GPT2TokenizerFast(tokenizer_object=raw).save_pretrained(tmp_path / "gpt2")
    texts = ["", "ab", "", "ab cd ab", ""]
    source = Source("s", {"train": pa.table({"text": texts})})
    encoded(
        source, tmp_path / "s", rows=rows, dtype="float32", model=load_encoder(str(tmp_path / "gpt2"), device="cpu")
    )
    batch = open_store(tmp_path / "s")["train"].take(range(5))
    for i, text in enumerate(texts):
        ids = raw.encode(text).ids
        if rows != "tokens":
            assert batch[i].shape == (1, 3, 16)
            assert batch.row_mask[i] == bool(ids)
        if not ids:
            assert not batch[i].any()
            continue
        with torch.no_grad():
            layers = model.eval()(torch.tensor([ids]), output_hidden_states=True).hidden_states
        states = torch.cat(layers).transpose(0, 1)  # [tokens, layers, hidden]
        expected = {"tokens": states, "last": states[-1:], "mean": states.mean(0, keepdim=True)}[rows]
        torch.testing.assert_close(batch[i], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", ["words", "words-mean"])
def test_rows_of_words_need_words(encoded: Encoding, tmp_path: Path, rows: str) -> None:
    source = Source("s", {"train": pa.table({"text": ["ab cd"]})})
    with pytest.raises(UsageError, match=f"rows of {rows} need words"):
        encoded(source, tmp_path / "s", rows=rows)
    assert list(tmp_path.iterdir()) == []


def test_a_length_beyond_the_encoders_is_refused(source: Source, encoded: Encoding, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot take that length") as caught:
        encoded(source, tmp_path / "s", max_length=65)
    assert (caught.value.expected, caught.value.received) == ("--max-length up to 64", "--max-length 65")
