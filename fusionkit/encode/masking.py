"""Choose sub-tokens to predict and hide them as in BERT: once per text, the same masks in each pass over it.

    chosen      u0 < share, and no special token
    hidden      by the mask token            u1 < 0.8
                by a random sub-token        0.8 ≤ u1 < 0.9: V[⌊u2 · |V|⌋]
                not at all                   u1 ≥ 0.9

Symbols: ``u0, u1, u2`` three numbers in [0, 1) for each sub-token, from SHAKE-128 of the seed and the text's
sub-tokens; ``V`` the ids of the vocabulary without special tokens.
Source: Devlin et al. (2019); choosing each sub-token by itself as in RoBERTa's training and transformers' collator.

A text's masks depend only on the text and the seed, not on its place, its neighbours or the process that encodes it.
The special sub-tokens are the same as in transformers' collator; the unknown sub-token is one of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fusionkit.encoder import Encoder, Tokenized
from fusionkit.encoder.masked_lm import MaskedLm
from fusionkit.errors import UsageError
from fusionkit.specs import EncodeSpec
from fusionkit.store.layout import NOT_MASKED

MASK_TOKEN, RANDOM = 0.8, 0.1


def required_lm(spec: EncodeSpec, encoder: Encoder) -> MaskedLm | None:
    """The mask token and LM head of the encoder, which masking needs; None where no masking is asked for.

    Raises:
        UsageError: the encoder was loaded without an LM head, or with another one than is asked for.
    """
    if spec.task is None:
        return None
    loaded = None if encoder.masked_lm is None else encoder.masked_lm.made_of
    if encoder.masked_lm is None or loaded != spec.lm_head:
        raise UsageError(
            f"encoder {encoder.name!r} was loaded without the LM head to encode with",
            expected=f"lm_head {spec.lm_head!r}",
            received=repr(loaded),
            remedy=f"load it by load_encoder(…, lm_head={spec.lm_head!r})",
        )
    return encoder.masked_lm


def masked(tokenized: Tokenized, lm: MaskedLm, seed: int, share: float) -> tuple[Tokenized, NDArray[np.int32]]:
    """Choose each sub-token that is not special with probability ``share``, and hide the chosen ones.

    Returns:
        the examples as the encoder sees them, and int32 ``[tokens]``: a chosen sub-token's original id, -100 elsewhere.
    """
    ids = tokenized.token_ids
    draws = np.zeros((3, len(ids)))
    for start, stop in pairwise(tokenized.token_offsets.tolist()):
        draws[:, start:stop] = _draws(ids[start:stop], seed)
    chosen = (draws[0] < share) & (tokenized.word_index >= 0) & ~np.isin(ids, lm.special_ids)
    by_mask = chosen & (draws[1] < MASK_TOKEN)
    by_random = chosen & ~by_mask & (draws[1] < MASK_TOKEN + RANDOM)
    seen = np.where(by_mask, np.int32(lm.mask_id), ids)
    seen[by_random] = lm.ordinary_ids[(draws[2, by_random] * len(lm.ordinary_ids)).astype(np.int64)]
    return replace(tokenized, token_ids=seen), np.where(chosen, ids, np.int32(NOT_MASKED))


def _draws(ids: NDArray[np.int32], seed: int) -> NDArray[np.float64]:
    """``[3, sub-tokens]`` in [0, 1), from a hash: the numbers of NumPy's generators may change between versions."""
    key = np.int64(seed).astype("<i8").tobytes() + ids.astype("<i4").tobytes()
    bits = np.frombuffer(hashlib.shake_128(key).digest(3 * 8 * len(ids)), "<u8").reshape(3, len(ids))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53  # 53 bits: the largest stays below 1
