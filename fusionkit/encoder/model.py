"""The frozen encoder: texts → sub-tokens, padded batches → hidden states."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.encoder.masked_lm import MaskedLm
from fusionkit.errors import UsageError
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


# Characters of a text, and words of a list, a sub-token of the maximum length: so much of the beginning is tokenised
# first, and up to so many times as much where it has too few sub-tokens. What a tokenizer cuts off it keeps in pieces
# of the maximum length; with two of them behind it the end of a text has the sub-tokens that it has in all of it.
ROOM_CHARACTERS, ROOM_WORDS, MOST_ROOM, PIECES = 16, 2, 128, 2
AMPERE = (8, 0)  # compute capability


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
        tf32: True where a GPU rounds the factors of its products to TF32.
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
    tf32: bool = False
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
            "tf32": gpu and self.tf32,
            "attention": getattr(self.model.config, "_attn_implementation", None),
        }

    def refuse_device(self) -> None:
        """Refuse a device that has not the precision of the products: its numbers would not be what the identity says.

        Raises:
            UsageError: TF32 on another device than an NVIDIA GPU of the Ampere generation or a later one.
        """
        device = self.device
        if not self.tf32 or (device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE):
            return
        raise UsageError(
            "--compute-dtype tf32 needs an NVIDIA GPU",
            expected="a GPU of compute capability 8.0 or more",
            received=f"the device {str(device)!r}",
            remedy="choose --compute-dtype float32 or bfloat16, or --device cuda where there is a GPU",
        )

    def tokenize(
        self, texts: Sequence[str] | Sequence[Sequence[str]], pairs: Sequence[str] | None, max_length: int
    ) -> Tokenized:
        """Sub-tokens of texts, of pairs of texts, or of texts already split into words.

        Of a long text the beginning is tokenised that gives ``max_length`` sub-tokens: a tokenizer would cut the text
        only when it has tokenised all of it.
        """
        if not texts:  # transformers fails on an empty list
            none = np.zeros(0, np.int32)
            return Tokenized(none, none, none.astype(np.uint8), np.zeros(1, np.int64), none.astype(np.bool_))
        if pairs is None:
            encodings, short = self._beginnings(texts, max_length)
        else:
            (first, some), (second, others) = (self._shortened(side, max_length) for side in (texts, pairs))
            encodings, short = self._encodings(first, second, max_length), some | others
        offsets = offsets_of(np.array([len(e.ids) for e in encodings], dtype=np.int64))
        ids = np.fromiter((i for e in encodings for i in e.ids), np.int32, offsets[-1])
        words = np.fromiter((-1 if w is None else w for e in encodings for w in e.word_ids), np.int32, offsets[-1])
        segments = np.fromiter((t for e in encodings for t in e.type_ids), np.uint8, offsets[-1])
        cut = np.fromiter((bool(e.overflowing) for e in encodings), np.bool_, len(encodings))
        return Tokenized(ids, words, segments, offsets, cut | short)

    def _beginnings(self, texts: Sequence[Any], max_length: int) -> tuple[list[Any], NDArray[np.bool_]]:
        """Encodings of texts or lists of words, of each as much as they need; True where that is not all of it."""
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        read = max_length * (ROOM_CHARACTERS if isinstance(texts[0], str) else ROOM_WORDS)
        most = read * MOST_ROOM
        encodings = self._encodings([_beginning(text, read, most) for text in texts], None, max_length)
        while read < most:
            # What was shortened and is still short has white space there, or words without a sub-token.
            few = [i for i in np.flatnonzero(lengths > read).tolist() if len(encodings[i].overflowing) < PIECES]
            if not few:
                break
            read *= 2
            longer = self._encodings([_beginning(texts[i], read, most) for i in few], None, max_length)
            for i, encoding in zip(few, longer, strict=True):
                encodings[i] = encoding
        return encodings, lengths > read

    def _shortened(self, texts: Sequence[Any], max_length: int) -> tuple[list[Any], NDArray[np.bool_]]:
        """Texts of pairs, the long ones cut where they have enough sub-tokens; True where nobody looked further."""
        found, short = list(texts), np.zeros(len(texts), dtype=np.bool_)
        long = [i for i, text in enumerate(texts) if len(text) > max_length * ROOM_CHARACTERS]
        if long:
            encodings, short[long] = self._beginnings([texts[i] for i in long], max_length)
            for i, encoding in zip(long, encodings, strict=True):
                pieces = [encoding, *encoding.overflowing]
                found[i] = texts[i][: max(end for piece in pieces for _, end in piece.offsets)]
        return found, short

    def _encodings(self, texts: Sequence[Any], pairs: Sequence[Any] | None, max_length: int) -> list[Any]:
        """The tokenizer's encodings of texts or lists of words, or of pairs of texts."""
        return list(
            self.tokenizer(
                list(texts),
                pairs,
                is_split_into_words=not isinstance(texts[0], str),
                truncation=True,
                max_length=max_length,
                padding=False,
                return_overflowing_tokens=False,
                return_attention_mask=False,
                verbose=False,
            ).encodings
        )

    def forward(self, token_ids: Tensor, attention_mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        """One padded batch through the frozen encoder, without gradients; as :meth:`states`."""
        with torch.inference_mode(), _products_in_tf32(self.tf32, self.device):
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


@contextmanager
def _products_in_tf32(rounds: bool, device: torch.device) -> Iterator[None]:
    """Whether a GPU rounds the factors of float32 products inside the block, whatever the program has set."""
    if device.type != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, rounds
    try:
        yield
    finally:
        matmul.allow_tf32 = before


def _beginning(text: Any, read: int, most: int) -> Any:
    """The beginning of a text, so many characters; of a list so many words, each with ``most`` characters at most."""
    return text[:read] if isinstance(text, str) else [word[:most] for word in text[:read]]
