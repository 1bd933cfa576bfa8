"""The frozen encoder: texts → sub-tokens, padded batches → hidden states."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.encoder.masked_lm import MaskedLm
from fusionkit.ragged import IntArray, offsets_of


@dataclass(frozen=True)
class Tokenized:
    """Examples as sub-tokens.

    Attributes:
        token_ids: int32 ``[tokens]``. word_index: int32 ``[tokens]``, -1 for special tokens.
        segments: uint8 ``[tokens]``, the tokenizer's token types: BERT's are 1 in the second text of a pair.
        token_offsets: int64 ``[examples + 1]``. cut: bool ``[examples]``, True where the maximum length cut.
    """

    token_ids: NDArray[np.int32]
    word_index: NDArray[np.int32]
    segments: NDArray[np.uint8]
    token_offsets: IntArray
    cut: NDArray[np.bool_]


@dataclass(frozen=True)
class Encoder:
    """A frozen encoder and its tokenizer, ready to run.

    Attributes:
        name: as the user gave it. layers: how many hidden states it has, L + 1. hidden: width.
        max_length: sub-tokens it accepts. parameters: their real count, for percentages.
        sentence_rows: ``cls``, ``last`` or ``mean``, how its training made a sentence's vector.
        identity: what determines its numbers: hashes of weights and tokenizer, revision.
        masked_lm: its mask token and LM head, where they were asked for.
        causal: True where a token sees those before it alone, as in decoder-only models.
        of_sentences: True where its folder says that it was trained as a sentence encoder.
        loading: arguments by which ``load_encoder`` makes the same in another process; None where it did not make it.
    """

    name: str
    model: Any
    tokenizer: Any
    layers: int
    hidden: int
    max_length: int
    parameters: int
    sentence_rows: str
    identity: dict[str, Any]
    device: torch.device
    accepts: frozenset[str] = field(default_factory=frozenset)
    masked_lm: MaskedLm | None = None
    causal: bool = False
    of_sentences: bool = False
    loading: dict[str, Any] | None = None

    @property
    def pad_id(self) -> int:
        """The id of padding: RoBERTa derives positions from it, others never see it behind the mask."""
        return int(self.tokenizer.pad_token_id or 0)

    @property
    def computes_with(self) -> dict[str, Any]:
        """The things besides the encoder's identity that may change the last bits of its numbers: recorded, and no part
        of that.
        """
        gpu = self.device.type == "cuda"
        return {
            "device": torch.cuda.get_device_name(self.device) if gpu else platform.machine(),
            "instructions": None if gpu else torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "tf32": gpu and torch.backends.cuda.matmul.allow_tf32,
            "attention": getattr(self.model.config, "_attn_implementation", None),
        }

    def tokenize(
        self, texts: Sequence[str] | Sequence[Sequence[str]], pairs: Sequence[str] | None, max_length: int
    ) -> Tokenized:
        """Sub-tokens of texts, of pairs of texts, or of texts already split into words."""
        if not texts:  # transformers fails on an empty list
            none = np.zeros(0, np.int32)
            return Tokenized(none, none, none.astype(np.uint8), np.zeros(1, np.int64), none.astype(np.bool_))
        split_into_words = not isinstance(texts[0], str)
        encodings = self.tokenizer(
            [list(text) for text in texts] if split_into_words else list(texts),
            None if pairs is None else list(pairs),
            is_split_into_words=split_into_words,
            truncation=True,
            max_length=max_length,
            padding=False,
            return_overflowing_tokens=False,
            return_attention_mask=False,
            verbose=False,
        ).encodings
        offsets = offsets_of(np.array([len(e.ids) for e in encodings], dtype=np.int64))
        ids = np.fromiter((i for e in encodings for i in e.ids), np.int32, offsets[-1])
        words = np.fromiter((-1 if w is None else w for e in encodings for w in e.word_ids), np.int32, offsets[-1])
        segments = np.fromiter((t for e in encodings for t in e.type_ids), np.uint8, offsets[-1])
        cut = np.fromiter((bool(e.overflowing) for e in encodings), np.bool_, len(encodings))
        return Tokenized(ids, words, segments, offsets, cut)

    def forward(self, token_ids: Tensor, attention_mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        """One padded batch through the frozen encoder, without gradients; as :meth:`states`."""
        with torch.inference_mode():
            return self.states(token_ids, attention_mask, segments)

    def states(self, token_ids: Tensor, attention_mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        """One padded batch through the encoder, with gradients where they are on.

        Args:
            token_ids, attention_mask, segments: int64 ``[batch, length]`` on the encoder's device.

        Returns:
            L + 1 tensors ``[batch, length, hidden]``, the embedding output first.
        """
        inputs = {"input_ids": token_ids, "attention_mask": attention_mask}
        if "token_type_ids" in self.accepts:
            inputs["token_type_ids"] = segments
        if "use_cache" in self.accepts:
            inputs["use_cache"] = False  # type: ignore[assignment]
        states = self.model(**inputs, output_hidden_states=True, return_dict=True).hidden_states
        return tuple(states) if states is not None else ()
