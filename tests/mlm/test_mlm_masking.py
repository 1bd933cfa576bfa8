"""Which sub-tokens are masked, and by what: shares, specials, and the same again whoever masks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionkit.alignment import lay_rows
from fusionkit.encode.masking import masked, required_lm
from fusionkit.encoder import Encoder, Tokenized
from fusionkit.encoder.masked_lm import MaskedLm
from fusionkit.errors import UsageError
from fusionkit.lm_head import LmHead
from fusionkit.specs import MASKED, EncodeSpec

SPECIAL, VOCABULARY, MASK = (0, 1, 2, 3, 4), 60, 4


def masking(seed: int = 0, share: float = 0.15) -> tuple[MaskedLm, int, float]:
    ordinary = np.setdiff1d(np.arange(VOCABULARY), SPECIAL)
    no_head = cast(LmHead, None)
    return MaskedLm(no_head, MASK, np.array(SPECIAL), ordinary), seed, share


def tokens(ids: NDArray[np.int32], offsets: list[int] | None = None) -> Tokenized:
    """Sub-tokens of texts; a first and a last one of each are special ones."""
    cuts = np.array([0, len(ids)] if offsets is None else offsets, dtype=np.int64)
    words = np.arange(len(ids), dtype=np.int32)
    words[cuts[:-1]], words[cuts[1:] - 1] = -1, -1
    return Tokenized(ids, words, np.zeros(len(ids), np.uint8), cuts, np.zeros(len(cuts) - 1, bool))


def test_shares_of_a_large_sample() -> None:
    """Within five standard deviations of 15 %, and of 80, 10 and 10 % of these."""
    ids = np.random.default_rng(0).integers(5, VOCABULARY, 400_000).astype(np.int32)
    given = tokens(ids)
    seen, labels = masked(given, *masking())
    chosen = labels != -100

    def near(count: int, of: int, share: float) -> bool:
        return abs(count - share * of) < 5 * math.sqrt(of * share * (1 - share))

    n = int(chosen.sum())
    assert near(n, len(ids), 0.15)
    by_mask = seen.token_ids[chosen] == MASK
    kept = seen.token_ids[chosen] == ids[chosen]
    # A random one is the sub-token itself once in 55.
    assert near(int(by_mask.sum()), n, 0.8)
    assert near(int(kept.sum()), n, 0.1 + 0.1 / 55)
    others = seen.token_ids[chosen][~by_mask & ~kept]
    assert near(len(others), n, 0.1 * 54 / 55)
    counts = np.bincount(others, minlength=VOCABULARY)
    assert counts[:5].sum() == 0
    assert all(near(int(count), len(others), 1 / 55) for count in counts[5:])
    assert (labels[chosen] == ids[chosen]).all()
    assert (seen.token_ids[~chosen] == ids[~chosen]).all()
    assert (given.token_ids == ids).all()  # what was given is not changed


@pytest.mark.parametrize("share", [0.15, 1.0])
def test_special_tokens_are_never_chosen(share: float) -> None:
    """Those that the tokenizer added, and those that stand in the text: unknown words, a literal mask."""
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 20_000).astype(np.int32)
    given = tokens(ids, list(range(0, 20_001, 20)))
    seen, labels = masked(given, *masking(share=share))
    chosen = labels != -100
    special = np.isin(ids, SPECIAL) | (given.word_index < 0)
    assert not (chosen & special).any()
    assert (seen.token_ids[special] == ids[special]).all()
    if share == 1.0:
        assert (chosen == ~special).all()


def test_the_numbers_are_those_of_the_hash_written_out() -> None:
    """Plain integers: bits of SHAKE-128 of the seed and the sub-tokens, little-endian."""
    ids, seed = [2, 17, 23, 58, 9, 31, 44, 3], 123
    key = seed.to_bytes(8, "little") + b"".join(i.to_bytes(4, "little") for i in ids)
    stream = hashlib.shake_128(key).digest(24 * len(ids))
    draws = [(int.from_bytes(stream[at : at + 8], "little") >> 11) / 2**53 for at in range(0, len(stream), 8)]
    u0, u1, u2 = draws[:8], draws[8:16], draws[16:]
    wanted_ids, wanted_labels = [], []
    for k, i in enumerate(ids):
        chosen = k not in (0, 7) and u0[k] < 0.6
        wanted_labels.append(i if chosen else -100)
        other = range(5, VOCABULARY)[int(u2[k] * 55)]
        wanted_ids.append((MASK if u1[k] < 0.8 else other if u1[k] < 0.9 else i) if chosen else i)
    seen, labels = masked(tokens(np.array(ids, np.int32)), *masking(seed, 0.6))
    assert seen.token_ids.tolist() == wanted_ids
    assert labels.tolist() == wanted_labels
    assert sum(label != -100 for label in wanted_labels) >= 2


def test_a_text_is_masked_alike_wherever_it_stands() -> None:
    ids = np.random.default_rng(2).integers(5, VOCABULARY, 300).astype(np.int32)
    together, labels = masked(tokens(ids, [0, 100, 220, 300]), *masking())
    for start, stop in ((0, 100), (100, 220), (220, 300)):
        alone, own = masked(tokens(ids[start:stop]), *masking())
        assert (alone.token_ids == together.token_ids[start:stop]).all()
        assert (own == labels[start:stop]).all()


def test_another_seed_masks_others() -> None:
    ids = np.random.default_rng(3).integers(5, VOCABULARY, 5000).astype(np.int32)
    found = [masked(tokens(ids), *masking(seed))[1] != -100 for seed in (0, 0, 1, 2**63 - 1)]
    assert (found[0] == found[1]).all()
    both = (found[0] & found[2]).sum() / found[0].sum()  # of those chosen, 15 % by chance
    assert 0.08 < both < 0.22
    assert (found[2] != found[3]).any()


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_both_families_bring_their_own_special_tokens(kind: str, encoder: Callable[[str], Encoder]) -> None:
    given = encoder(kind)
    found = required_lm(EncodeSpec(task="mlm"), given)
    assert found is not None
    vocabulary = given.tokenizer.get_vocab()
    names = (
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        if kind == "bert"
        else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    )
    assert found.mask_id == vocabulary[names[-1]]
    assert found.special_ids.tolist() == sorted(vocabulary[name] for name in names)
    assert sorted([*found.special_ids, *found.ordinary_ids]) == sorted(vocabulary.values())
    tokenized = given.tokenize([f"ab {names[1]} cd {names[-1]} e", "fgh"], None, 64)
    _, labels = masked(tokenized, found, 0, 1.0)
    hidden = {given.tokenizer.decode([i]).strip() for i in labels[labels != -100].tolist()} - {""}
    assert hidden == ({"a", "##b", "c", "##d", "e", "f", "##g", "##h"} if kind == "bert" else set("abcdefgh"))


def test_rows_are_the_masked_sub_tokens_in_order() -> None:
    offsets, words = np.array([0, 4, 4, 6, 9]), np.zeros(9, np.int32)
    masked_ones = np.array([0, 1, 0, 1, 0, 0, 1, 0, 1], dtype=bool)
    rows = lay_rows(MASKED, offsets, words, None, masked_ones)
    assert rows.row_offsets.tolist() == [0, 2, 2, 2, 4]
    assert (rows.first.tolist(), rows.last.tolist()) == ([1, 3, 6, 8], [2, 4, 7, 9])
    assert rows.mask.all()
    with pytest.raises(ValueError, match="which sub-tokens were masked"):
        lay_rows(MASKED, offsets, words, None)


def test_nothing_is_masked_unless_asked_for(encoder: Callable[[str], Encoder]) -> None:
    assert required_lm(EncodeSpec(), encoder("bert")) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_seed": 1}, "--mask-seed does nothing without --task mlm"),
        ({"lm_head": "embeddings"}, "--lm-head does nothing without --task mlm"),
        ({"task": "mlm", "lm_head": "tied"}, "unknown lm-head 'tied'"),
        ({"mask_share": 0.3}, "--mask-share does nothing without --task mlm"),
        ({"task": "mlm", "rows": "tokens"}, "keeps the rows of masked sub-tokens, not of tokens"),
        ({"task": "mlm", "mask_share": 0.0}, "mask-share is out of range"),
        ({"task": "mlm", "mask_share": 1.5}, "mask-share is out of range"),
        ({"task": "mlm", "mask_share": float("nan")}, "mask-share is out of range"),
        ({"task": "mlm", "mask_seed": -1}, "mask-seed is out of range"),
        ({"task": "mln"}, "unknown task 'mln'"),
        ({"rows": "masked-tokens"}, "unknown rows 'masked-tokens'"),
    ],
)
def test_wrong_wishes_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EncodeSpec(**fields)  # type: ignore[arg-type]
