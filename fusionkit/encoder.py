"""The frozen encoder: loading, identity, texts → sub-tokens, batches → hidden states.

All of stage one's use of ``transformers`` is here.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from transformers.utils.hub import cached_file

from fusionkit.bundled import minilm_folder
from fusionkit.errors import EncoderError, FusionkitError, UsageError, unknown_name
from fusionkit.ragged import IntArray, offsets_of

BUNDLED = {"minilm": minilm_folder}
# Without a limit of its own (T5's relative positions), an encoder gets BERT's.
DEFAULT_MAX_LENGTH = 512
CHOICES = "'minilm', a folder with config.json, model.safetensors and tokenizer.json, or a hub id"


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
        name: as the user gave it. layers: L + 1, the embedding output included. hidden: width.
        max_length: sub-tokens it accepts. parameters: their real count, for percentages.
        sentence_rows: ``cls`` or ``mean``, what its training made a sentence's vector of.
        identity: what makes its numbers: weights and tokenizer hashes, revision.
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

    @property
    def pad_id(self) -> int:
        """What padding is filled with: RoBERTa counts positions by it, others never see it behind the mask."""
        return int(self.tokenizer.pad_token_id or 0)

    def tokenize(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        pairs: Sequence[str] | None,
        max_length: int,
    ) -> Tokenized:
        """Sub-tokens of texts, of pairs of texts, or of texts already split into words."""
        split_into_words = bool(texts) and not isinstance(texts[0], str)
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
        """One padded batch through the encoder.

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
        with torch.inference_mode():
            states = self.model(**inputs, output_hidden_states=True, return_dict=True).hidden_states
        return tuple(states) if states is not None else ()


def load_encoder(
    reference: str,
    *,
    revision: str | None = None,
    device: str = "auto",
    compute_dtype: str = "float32",
    words: bool = False,
    trust_remote_code: bool = False,
) -> Encoder:
    """Load an encoder by bundled name, folder or hub id, and make sure that it can be used.

    Encoder-only and decoder-only models are taken whole, of encoder–decoder models the encoder half.

    Args:
        words: the texts come split into words (byte-level tokenizers then need a space before each).

    Raises:
        UsageError: a bundled name is misspelt, a file is given, or there is no such device.
        EncoderError: no such model, no safetensors weights, no fast tokenizer or no hidden states.
    """
    place = str(BUNDLED[reference]()) if reference in BUNDLED else str(Path(reference).expanduser())
    if reference not in BUNDLED and not Path(place).is_dir():
        _refuse_misspelt(reference, Path(place))
        place = reference
    target = _device(device)
    with _quiet_transformers():
        try:
            revision = _commit(place, revision) or revision
            options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
            config = transformers.AutoConfig.from_pretrained(place, **options)
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                place, **options, **({"add_prefix_space": True} if words else {})
            )
            model, report = transformers.AutoModel.from_pretrained(
                place,
                **options,
                use_safetensors=True,
                dtype=getattr(torch, compute_dtype),
                output_loading_info=True,
            )
        except FusionkitError:
            raise
        except Exception as error:  # OSError, ValueError, KeyError, ImportError and the library's own
            raise _not_loadable(reference, error) from error
    if not getattr(tokenizer, "is_fast", False):
        raise EncoderError(
            f"encoder {reference!r} has no fast tokenizer",
            expected="a tokenizer.json, which aligns words and sub-tokens",
            received=type(tokenizer).__name__,
            remedy="convert its tokenizer with transformers and save it beside the model",
        )
    _refuse_empty_tokenizer(reference, tokenizer)
    whole, model = model, _text_half(model)
    _refuse_random_weights(reference, whole, model, report["missing_keys"])
    # As loaded is as trained: dropout off, no gradients kept.
    model = model.eval().requires_grad_(False).to(target)
    layers, hidden = _probe(reference, model, target)
    return Encoder(
        name=reference,
        model=model,
        tokenizer=tokenizer,
        layers=layers,
        hidden=hidden,
        max_length=_max_length(config, tokenizer),
        parameters=sum(p.numel() for p in model.parameters()),
        sentence_rows=_sentence_rows(place, revision, config, tokenizer),
        identity={
            "weights": _weights_hash(model, report["missing_keys"]),
            "tokenizer": _tokenizer_hash(tokenizer),
            "revision": revision,
        },
        device=target,
        accepts=_accepted(model, tokenizer),
    )


def _device(asked: str) -> torch.device:
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=asked).device
    except (RuntimeError, AssertionError) as error:  # a name that torch does not know, or a device it lacks
        raise UsageError(
            f"device {asked!r} cannot be used",
            expected="auto, cpu, cuda or cuda:N",
            received=str(error).splitlines()[0],
        ) from error


def _commit(place: str, revision: str | None) -> str | None:
    """The commit that a hub id's revision stands for, read off the place of its files in the cache."""
    if Path(place).is_dir():
        return None
    file = cached_file(place, "config.json", revision=revision)
    found = re.search(r"/snapshots/([0-9a-f]{40})/", Path(file or "").as_posix())
    return found and found.group(1)


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Errors are ours to word; progress bars and advice of the libraries stay out of the output."""
    library: Any = transformers.utils.logging
    loggers: tuple[Any, ...] = (library, huggingface_hub.utils.logging)
    before, bars = [logger.get_verbosity() for logger in loggers], library.is_progress_bar_enabled()
    for logger in loggers:
        logger.set_verbosity_error()
    library.disable_progress_bar()  # the hub's too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, verbosity in zip(loggers, before, strict=True):
            logger.set_verbosity(verbosity)
        if bars:
            library.enable_progress_bar()


def _refuse_misspelt(reference: str, path: Path) -> None:
    """Say at once what the hub would take its time to say."""
    if path.exists():
        raise UsageError(
            f"encoder {reference!r} is a file",
            expected=CHOICES,
            remedy="give the folder that the model was saved to",
        )
    near = unknown_name("encoder", reference, BUNDLED).remedy or ""
    if "/" not in reference and near.startswith("did you mean"):
        raise UsageError(f"unknown encoder {reference!r}", expected=CHOICES, remedy=near)


def _not_loadable(reference: str, error: Exception) -> EncoderError:
    message = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return EncoderError(
        f"cannot load the encoder {reference!r}",
        expected=CHOICES,
        received=f"{type(error).__name__}: {message.strip()}",
        remedy="check the path or id, and --revision, and the network",
    )


def _refuse_empty_tokenizer(reference: str, tokenizer: Any) -> None:
    """Where files are missing, transformers makes a tokenizer that knows its special tokens alone."""
    pieces = set(tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)) - set(tokenizer.all_special_tokens)
    if not any(piece.strip("▁") for piece in pieces):
        raise EncoderError(
            f"encoder {reference!r} has no vocabulary",
            expected="a tokenizer.json beside the model",
            received=f"a {type(tokenizer).__name__} that knows no piece of text",
            remedy="save the tokenizer to the same folder: tokenizer.save_pretrained(…)",
        )


def _text_half(model: Any) -> Any:
    """Of an encoder–decoder model the encoder, of any other the model itself.

    A checkpoint of T5's encoder alone says of itself that it is no encoder–decoder; its parts tell.
    """
    parts = {name for name, _ in model.named_children()}
    return model.get_encoder() if {"encoder", "decoder"} <= parts else model


def _accepted(model: Any, tokenizer: Any) -> frozenset[str]:
    """The arguments its forward takes, without token types where its tokenizer gives none (GPT-2)."""
    unused = {"token_type_ids"} - set(tokenizer.model_input_names)
    return frozenset(inspect.signature(model.forward).parameters) - unused


def _refuse_random_weights(reference: str, whole: Any, model: Any, missing_keys: Collection[str]) -> None:
    """A checkpoint that lacks weights would be filled with random ones: states of no meaning."""
    used = {id(parameter) for parameter in model.parameters()}
    names = [name for name, parameter in whole.named_parameters() if id(parameter) in used]
    # No hidden state passes through a pooler; language models come without.
    missing = [name for name in names if name in missing_keys and "pooler" not in name]
    if missing:
        raise EncoderError(
            f"the checkpoint of encoder {reference!r} lacks {len(missing)} of its weights",
            expected="all weights of the encoder",
            received=f"no {missing[0]}" + (" …" if len(missing) > 1 else ""),
            remedy="give the checkpoint that the model was saved to, of this architecture",
        )


def _probe(reference: str, model: Any, device: torch.device) -> tuple[int, int]:
    """Layers and width, read off a real forward pass of a few tokens."""
    ids = torch.zeros(1, 8, dtype=torch.int64, device=device)
    try:
        with torch.inference_mode():
            output = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
    except Exception as error:
        raise EncoderError(
            f"encoder {reference!r} does not run on text alone",
            expected="a model that takes input_ids and attention_mask",
            received=f"{type(error).__name__}: {error}",
            remedy="choose a text encoder",
        ) from error
    states = getattr(output, "hidden_states", None)
    if not states:
        raise EncoderError(
            f"encoder {reference!r} ({type(model).__name__}) returns no hidden states",
            expected="hidden_states with output_hidden_states=True",
            remedy="choose an encoder that exposes its layers",
        )
    shapes = [tuple(state.shape[1:]) for state in states]
    if len(set(shapes)) > 1:
        raise EncoderError(
            f"the layers of encoder {reference!r} ({type(model).__name__}) differ in shape",
            expected="one state of one width for each sub-token in each layer",
            received=f"(length, width) of {', '.join(map(str, dict.fromkeys(shapes)))}",
            remedy="choose an encoder that neither pools nor projects between its layers",
        )
    return len(states), int(states[-1].shape[-1])


def _max_length(config: Any, tokenizer: Any) -> int:
    """The positions that the model has, less those a RoBERTa spends on its padding index."""
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if not isinstance(positions, int) or positions <= 0:
        positions = DEFAULT_MAX_LENGTH
    elif "roberta" in config.model_type or config.model_type in ("camembert", "longformer", "mpnet"):
        positions -= (config.pad_token_id or 0) + 1
    return int(min(positions, tokenizer.model_max_length))


def _sentence_rows(place: str, revision: str | None, config: Any, tokenizer: Any) -> str:
    """``mean`` where the model was trained so or has no first token to speak for the sentence."""
    with _quiet_transformers():
        pooling = cached_file(
            place,
            "1_Pooling/config.json",  # where sentence-transformers keeps it
            revision=revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    fields = json.loads(Path(pooling).read_text()) if pooling else {}
    if fields.get("pooling_mode_mean_tokens") or fields.get("pooling_mode") == "mean":
        return "mean"
    return "cls" if tokenizer.cls_token_id is not None and not config.is_encoder_decoder else "mean"


def _weights_hash(model: Any, missing_keys: Collection[str]) -> str:
    """SHA-256 over names, shapes, types and bytes of all weights: the same in any file layout.

    Weights that the checkpoint lacks (a pooler's) are random, other ones at each loading: left out.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if name in missing_keys:
            continue
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tokenizer_hash(tokenizer: Any) -> str:
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    # Left behind by earlier calls, not part of what the tokenizer is.
    backend["truncation"] = backend["padding"] = None
    return hashlib.sha256(json.dumps(backend, sort_keys=True).encode()).hexdigest()
