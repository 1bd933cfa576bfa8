"""The frozen encoder: texts → sub-tokens, padded batches → hidden states."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.encoder.masked_lm import MaskedLm
from fusionkit.errors import EncoderError, UsageError
from fusionkit.machine.bfloat16 import in_float32
from fusionkit.machine.devices import tf32_products
from fusionkit.ragged import IntArray, offsets_of
from fusionkit.specs import FLOAT32, TF32


@dataclass(frozen=True)
class Tokenized:
    """Examples as sub-tokens.

    Attributes:
        token_ids: int32 ``[tokens]``. word_index: int32 ``[tokens]``, -1 for special tokens.
        segments: uint8 ``[tokens]``, the tokenizer's token types: BERT's are 1 in the second text of a pair.
        token_offsets: int64 ``[examples + 1]``. cut: bool ``[examples]``, True if cut to the maximum length.
    """

    token_ids: NDArray[np.int32]
    word_index: NDArray[np.int32]
    segments: NDArray[np.uint8]
    token_offsets: IntArray
    cut: NDArray[np.bool_]


# The beginning of a text that is tokenised first has ROOM_CHARACTERS characters per sub-token of the maximum length; of
# a list of words, ROOM_WORDS words. If it has too few sub-tokens, it grows up to MOST_ROOM times. A tokenizer keeps
# what it cuts off in pieces of the maximum length. With two such PIECES after it, the part that is kept has the same
# sub-tokens as in the whole text.
ROOM_CHARACTERS, ROOM_WORDS, MOST_ROOM, PIECES = 16, 2, 128, 2
AMPERE = (8, 0)  # compute capability


@dataclass(frozen=True)
class Encoder:
    """A frozen encoder and its tokenizer, ready to run.

    Attributes:
        name: as the user gave it. layers: the number of hidden states, L + 1. hidden: width.
        max_length: most sub-tokens of a sequence. parameters: the number of the model's parameters.
        sentence_rows: ``cls``, ``last`` or ``mean``: what stands for a text where nothing else is chosen.
        identity: what determines its numbers (:mod:`fusionkit.store.same_encoder`).
        masked_lm: its mask token and LM head, if requested.
        causal: True if a token sees only itself and earlier tokens, as in decoder-only models.
        compute_dtype: of its weights and products, as in :func:`~fusionkit.encoder.load_encoder`.
        of_sentences: True if its folder says that it was trained as a sentence encoder.
        loading: arguments of ``load_encoder`` that make the same encoder in another process; None if it did not make
            this one.
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
    compute_dtype: str = FLOAT32
    of_sentences: bool = False
    loading: dict[str, Any] | None = None

    @property
    def tf32(self) -> bool:
        """Whether a GPU rounds the factors of its products to 11 bits."""
        return self.compute_dtype == TF32

    @property
    def pad_id(self) -> int:
        """The id of padding, 0 if that has no embedding. RoBERTa derives positions from it; others do not see it."""
        pad = int(self.tokenizer.pad_token_id or 0)
        return pad if pad < self.embeddings else 0

    @property
    def embeddings(self) -> float:
        """The number of token ids that the model has embeddings for; infinite where the model does not tell."""
        try:
            return int(self.model.get_input_embeddings().num_embeddings)
        except (AttributeError, NotImplementedError):
            return math.inf

    @property
    def computes_with(self) -> dict[str, Any]:
        """What may change the last bits of the encoder's numbers besides its identity: recorded, but no part of it."""
        gpu = self.device.type == "cuda"
        return {
            "device": torch.cuda.get_device_name(self.device) if gpu else platform.machine(),
            "instructions": None if gpu else torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "tf32": gpu and self.tf32,
            "attention": getattr(self.model.config, "_attn_implementation", None),
        }

    def refuse_device(self) -> None:
        """Refuse a device without the precision of the products: its numbers would contradict the identity.

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

        Of a long text only a beginning is tokenised that gives ``max_length`` sub-tokens: a tokenizer tokenises the
        whole text before it cuts it.

        Raises:
            EncoderError: a token without an embedding.
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
        ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int32, offsets[-1])
        self._refuse_without_embedding(ids)
        words = np.fromiter((-1 if w is None else w for e in encodings for w in e.word_ids), np.int32, offsets[-1])
        segments = np.fromiter(chain.from_iterable(e.type_ids for e in encodings), np.uint8, offsets[-1])
        cut = np.fromiter((bool(e.overflowing) for e in encodings), np.bool_, len(encodings))
        return Tokenized(ids, words, segments, offsets, cut | short)

    def _refuse_without_embedding(self, ids: NDArray[np.int32]) -> None:
        highest, count = int(ids.max(initial=0)), self.embeddings
        if highest < count:
            return
        raise EncoderError(
            f"encoder {self.name!r} has no embedding for the token {self.tokenizer.convert_ids_to_tokens(highest)!r}",
            expected=f"ids below {count:,}, the number of its embeddings",
            received=f"the id {highest:,}, which only its tokenizer has",
            remedy="call model.resize_token_embeddings(len(tokenizer)) and save the model again, or remove the token",
        )

    def _beginnings(self, texts: Sequence[Any], max_length: int) -> tuple[list[Any], NDArray[np.bool_]]:
        """Encodings of the needed beginnings of texts or lists of words; True where a text was longer than that."""
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        read = max_length * (ROOM_CHARACTERS if isinstance(texts[0], str) else ROOM_WORDS)
        most = read * MOST_ROOM
        encodings = self._encodings([_beginning(text, read, most) for text in texts], None, max_length)
        while read < most:
            # A shortened text may have too few sub-tokens: white space, or words without a sub-token.
            few = [i for i in np.flatnonzero(lengths > read).tolist() if len(encodings[i].overflowing) < PIECES]
            if not few:
                break
            read *= 2
            longer = self._encodings([_beginning(texts[i], read, most) for i in few], None, max_length)
            for i, encoding in zip(few, longer, strict=True):
                encodings[i] = encoding
        return encodings, lengths > read

    def _shortened(self, texts: Sequence[Any], max_length: int) -> tuple[list[Any], NDArray[np.bool_]]:
        """Texts of pairs, long ones cut where they have enough sub-tokens; True where the rest was not tokenised."""
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
        words = not isinstance(texts[0], str)
        # This call sets the truncation. For all texts it would also make lists of what the encodings hold already, one
        # text after another: a fifth of the time of a plan.
        self.tokenizer(
            [texts[0]],
            None if pairs is None else [pairs[0]],
            is_split_into_words=words,
            truncation=True,
            max_length=max_length,
            padding=False,
            verbose=False,
        )
        both = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        return list(self.tokenizer.backend_tokenizer.encode_batch(both, is_pretokenized=words))

    def forward(self, token_ids: Tensor, attention_mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        """One padded batch through the frozen encoder, without gradients; as :meth:`states`."""
        products = in_float32(self.compute_dtype, self.device)
        with torch.inference_mode(), tf32_products(self.tf32, self.device), products:
            return self.states(token_ids, attention_mask, segments)

    def states(self, token_ids: Tensor, attention_mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        """One padded batch through the encoder, with gradients if they are enabled.

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


def _beginning(text: Any, read: int, most: int) -> Any:
    """The first ``read`` characters of a text, or words of a list, each cut to ``most`` characters."""
    return text[:read] if isinstance(text, str) else [word[:most] for word in text[:read]]
