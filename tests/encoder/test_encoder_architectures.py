"""Each architecture: what is read off it, and its states in a padded batch against each text alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fusionkit.encoder import Encoder, Tokenized, load_encoder
from fusionkit.encoder.refusals import refuse_surrogates
from fusionkit.errors import UsageError

# layers with the embedding output, width, sub-tokens taken, rows for sentences; by hand from the configurations
FACTS = {
    "bert": (4, 16, 64, "cls"),
    "distilbert": (3, 16, 64, "cls"),
    "roberta": (4, 16, 64, "cls"),  # of 66 positions its padding index spends two
    "deberta-v2": (4, 16, 64, "cls"),
    "modernbert": (4, 16, 64, "cls"),
    "gpt2": (4, 16, 64, "last"),
    "t5": (4, 16, 512, "mean"),
    "t5-encoder": (4, 16, 512, "mean"),
    "bart": (3, 16, 48, "mean"),
}
load = partial(load_encoder, device="cpu")
# Positions come from a table: one more than it has is an error of the model itself.
ABSOLUTE = ["bert", "distilbert", "roberta", "gpt2", "bart"]
TEXTS = ["the quick brown foxes are jumping over it", "Zürich", "an unbelievable amount, again", "rain fell"]
PAIRS = ["nobody had seen it", "so quiet in years , years and years", "a", "the lazy harbour"]


def padded(encoder: Encoder, tokens: Tokenized) -> tuple[torch.Tensor, ...]:
    """All texts in one batch, padded to the longest with the padding token."""
    starts, ends = tokens.token_offsets[:-1], tokens.token_offsets[1:]
    shape = (len(starts), int((ends - starts).max()))
    ids = torch.full(shape, encoder.tokenizer.pad_token_id or 0)
    mask, segments = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        ids[i, : end - start] = torch.from_numpy(tokens.token_ids[start:end])
        segments[i, : end - start] = torch.from_numpy(tokens.segments[start:end])
        mask[i, : end - start] = 1
    return encoder.forward(ids, mask, segments)


def test_every_architecture_is_described_here(architectures: list[str]) -> None:
    assert sorted(FACTS) == sorted(architectures)
    assert len(FACTS) == 9


@pytest.mark.parametrize("name", FACTS)
def test_layers_width_and_length_are_the_configurations(tiny: Callable[[str], Any], name: str) -> None:
    encoder = load(str(tiny(name).folder))
    assert (encoder.layers, encoder.hidden, encoder.max_length, encoder.sentence_rows) == FACTS[name]
    assert encoder.causal == (name == "gpt2")
    assert encoder.parameters == sum(p.numel() for p in tiny(name).model.parameters())


@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["texts", "pairs"])
@pytest.mark.parametrize("name", FACTS)
def test_a_batch_gives_each_text_the_states_it_has_alone(
    tiny: Callable[[str], Any], name: str, pairs: list[str] | None
) -> None:
    built = tiny(name)
    encoder = load(str(built.folder))
    tokens = encoder.tokenize(TEXTS, pairs, encoder.max_length)
    states = padded(encoder, tokens)
    for i, text in enumerate(TEXTS):
        alone = built.states(text, pairs[i] if pairs else None)  # [layers, length, hidden]
        assert len(states) == len(alone)
        batched = torch.stack([layer[i, : alone.shape[1]] for layer in states])
        torch.testing.assert_close(batched, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FACTS)
def test_sub_tokens_are_the_tokenizers_own(tiny: Callable[[str], Any], name: str) -> None:
    built = tiny(name)
    tokens = load(str(built.folder)).tokenize(TEXTS, PAIRS, 64)
    expected = [built.tokenizer.encode(text, pair) for text, pair in zip(TEXTS, PAIRS, strict=True)]
    assert tokens.token_ids.tolist() == [i for e in expected for i in e.ids]
    assert tokens.segments.tolist() == [t for e in expected for t in e.type_ids]
    assert np.diff(tokens.token_offsets).tolist() == [len(e.ids) for e in expected]


@pytest.mark.parametrize("name", FACTS)
def test_each_word_gets_its_own_sub_tokens(tiny: Callable[[str], Any], name: str) -> None:
    """Words of letters only: what a word's sub-tokens spell, without their marks, is the word."""
    encoder = load(str(tiny(name).folder), words=True)
    words = ["the", "unbelievable", "foxes", "are", "quick"]
    tokens = encoder.tokenize([words], None, 64)
    pieces = encoder.tokenizer.convert_ids_to_tokens(tokens.token_ids.tolist())
    spelt = ["", "", "", "", ""]
    for piece, word in zip(pieces, tokens.word_index, strict=True):
        if word >= 0:
            spelt[word] += piece.strip("▁Ġ#")
    assert spelt == words
    assert (np.diff(tokens.word_index[tokens.word_index >= 0]) >= 0).all()


def test_byte_level_words_have_a_space_before_each(tiny: Callable[[str], Any]) -> None:
    built = tiny("gpt2")
    encoder = load(str(built.folder), words=True)
    tokens = encoder.tokenize([["foxes", "foxes"]], None, 64)
    assert tokens.token_ids.tolist() == built.tokenizer.encode(" foxes").ids * 2


@pytest.mark.parametrize("name", FACTS)
def test_the_model_takes_a_text_of_the_full_length(tiny: Callable[[str], Any], name: str) -> None:
    encoder = load(str(tiny(name).folder))
    tokens = encoder.tokenize(["rain " * 600, "rain"], None, encoder.max_length)
    assert np.diff(tokens.token_offsets)[0] == encoder.max_length
    assert tokens.cut.tolist() == [True, False]
    assert padded(encoder, tokens)[0].shape == (2, encoder.max_length, 16)


LONG = "the quick brown foxes are jumping over it, unbelievable! "
# At first 16 characters a sub-token are tokenised, or two words, then up to 128 times as much.
LENGTHS = {"long": LONG * 9, "longer": " " * 5000 + LONG * 9, "blank": " " * 9000, "short": LONG}


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "roberta"])
def test_a_long_text_has_the_sub_tokens_that_all_of_it_has(tiny: Callable[[str], Any], name: str) -> None:
    encoder = load(str(tiny(name).folder))
    texts = list(LENGTHS.values())
    for pairs in (None, [LONG[:30]] * 4):  # what is cut off of two long texts is kept in as many pieces as one squared
        found = encoder.tokenize(texts, pairs, 9)
        whole = encoder.tokenizer(texts, pairs, truncation=True, max_length=9, verbose=False).encodings
        assert found.token_ids.tolist() == [i for e in whole for i in e.ids]
        assert found.cut.tolist() == [bool(e.overflowing) for e in whole]
    words = [["", *text.split(), "rain" * 900] for text in texts] + [[""] * 100 + ["rain"]]
    whole = encoder.tokenizer(words, is_split_into_words=True, truncation=True, max_length=9, verbose=False).encodings
    found = encoder.tokenize(words, None, 9)
    assert found.token_ids.tolist() == [i for e in whole for i in e.ids]
    assert found.word_index.tolist() == [-1 if w is None else w for e in whole for w in e.word_ids]


def test_of_a_text_with_nothing_in_its_beginning_only_so_much_is_tokenised(tiny: Callable[[str], Any]) -> None:
    encoder = load(str(tiny("bert").folder))
    found = encoder.tokenize([" " * 100_000 + "rain", "rain"], None, 9)
    assert np.diff(found.token_offsets).tolist() == [2, 3]
    assert found.cut.tolist() == [True, False]


@pytest.mark.parametrize("texts", [["rain", "half \ud83d"], [["rain"], ["half", "\ud83d"]]], ids=["texts", "words"])
def test_half_of_a_surrogate_pair_is_refused(texts: Any) -> None:
    with pytest.raises(UsageError, match="text 8 cannot be encoded"):
        refuse_surrogates(texts, 7)
    refuse_surrogates(texts[:1])


@pytest.mark.parametrize("name", ABSOLUTE)
def test_the_model_takes_no_text_longer_than_that(tiny: Callable[[str], Any], name: str) -> None:
    encoder = load(str(tiny(name).folder))
    ids = torch.full((1, encoder.max_length + 1), 5)
    with pytest.raises((IndexError, RuntimeError)):
        encoder.forward(ids, torch.ones_like(ids), torch.zeros_like(ids))


def test_of_an_encoder_decoder_the_encoder_alone_is_counted(tiny: Callable[[str], Any]) -> None:
    whole, half = (load(str(tiny(name).folder)) for name in ("t5", "t5-encoder"))
    # One layer: 4 attention matrices, 2 of the feed-forward, 2 norms; the first one has the position table.
    layer = 4 * 16 * 16 + 2 * 16 * 32 + 2 * 16
    assert whole.parameters == half.parameters == whole.model.config.vocab_size * 16 + 3 * layer + 32 * 2 + 16
