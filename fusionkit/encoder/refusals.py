"""Checks of what a user names as an encoder; each error names the remedy."""

from __future__ import annotations

import contextlib
import errno
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers

from fusionkit.encoder.reference import CHOICES
from fusionkit.errors import EncoderError, FusionkitError, StoppedError, UntrustedCodeError, UsageError, first_line
from fusionkit.machine.memory import out_of_memory

# Remedies where an encoder cannot be loaded.
CHECK_PLACE = "check the path or id, its revision, and the network"
SAVE_AGAIN = "save it again with `model.save_pretrained(FOLDER)`, which writes safetensors; *.bin files are not read"


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the libraries' progress bars, warnings and advice inside the block."""
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


@contextlib.contextmanager
def loading_errors(reference: str) -> Iterator[None]:
    """Silence the libraries inside the block, and turn their exceptions into one clear error."""
    try:
        with quiet_transformers():
            yield
    except FusionkitError:
        raise
    except Exception as error:  # OSError, ValueError, KeyError, ImportError and the libraries' own
        _refuse_short_memory(reference, error)
        received = first_line(error, kind=True)
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free some space where the hub's cache lies (HF_HOME)"
            raise EncoderError(
                f"the disk is full: cannot load {reference!r}", received=received, remedy=remedy
            ) from error
        if "custom code" in received:  # the words of transformers for code that is not trusted
            raise UntrustedCodeError(
                f"the encoder {reference!r} brings code of its own",
                expected="an encoder of transformers' own, or one that you trust",
                received=received,
                remedy="read that code; where a command has --trust-remote-code, it lets the code run",
            ) from error
        raise EncoderError(
            f"cannot load the encoder {reference!r}",
            expected=CHOICES,
            received=received,
            remedy=SAVE_AGAIN if "safetensors" in received and _is_pickled(reference) else CHECK_PLACE,
        ) from error


def _refuse_short_memory(reference: str, error: Exception) -> None:
    if (short := out_of_memory(error)) is not None:
        raise EncoderError(
            f"the encoder {reference!r} does not fit into memory",
            received=short,
            remedy="end other work on this device, or choose another --device or a smaller encoder",
        ) from error


def _is_pickled(reference: str) -> bool:
    """Whether an encoder is a folder whose weights are pickled only, which are not read."""
    folder = Path(reference).expanduser()
    return folder.is_dir() and any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors"))


def refuse_empty_tokenizer(reference: str, tokenizer: Any) -> None:
    """Refuse a tokenizer without a vocabulary: transformers makes one where files are missing."""
    pieces = set(tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)) - set(tokenizer.all_special_tokens)
    if not any(piece.strip("▁") for piece in pieces):
        raise EncoderError(
            f"encoder {reference!r} has no vocabulary",
            expected="a tokenizer.json beside the model",
            received=f"a {type(tokenizer).__name__} that knows no piece of text",
            remedy="save the tokenizer to the same folder: tokenizer.save_pretrained(…)",
        )


def refuse_random_weights(reference: str, whole: Any, model: Any, missing_keys: Collection[str]) -> None:
    """Refuse a checkpoint that lacks weights: transformers would fill them with random numbers."""
    used = {id(parameter) for parameter in model.parameters()}
    names = [name for name, parameter in whole.named_parameters() if id(parameter) in used]
    # No hidden state depends on the pooler, and checkpoints of language models have none.
    missing = [name for name in names if name in missing_keys and "pooler" not in name]
    if missing:
        raise EncoderError(
            f"the checkpoint of encoder {reference!r} lacks {len(missing)} of its weights",
            expected="all weights of the encoder",
            received=f"no {missing[0]}" + (" …" if len(missing) > 1 else ""),
            remedy="give the checkpoint that the model was saved to, of this architecture",
        )


def probe(reference: str, model: Any, device: torch.device) -> tuple[int, int, bool]:
    """Layers, width, and whether it is causal (the first token sees no other), from two short forward passes."""
    ids = torch.zeros(1, 8, dtype=torch.int64, device=device)
    others = torch.tensor([[0, 1, 0, 1, 1, 0, 1, 1]], device=device)  # the same first token
    mask = torch.ones_like(ids)
    try:
        with torch.inference_mode():
            output, varied = (
                model(input_ids=each, attention_mask=mask, output_hidden_states=True) for each in (ids, others)
            )
    except StoppedError:
        raise
    except Exception as error:
        _refuse_short_memory(reference, error)
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
    # Inputs of equal shape use the same arithmetic, so a token that sees no changed token keeps the same bits.
    causal = torch.equal(states[-1][:, 0], varied.hidden_states[-1][:, 0])
    return len(states), int(states[-1].shape[-1]), causal


def refuse_surrogates(texts: Sequence[str | Sequence[str]], start: int = 0) -> None:
    """Refuse texts, or lists of words, that hold half of a surrogate pair: a tokenizer reads UTF-8.

    Args:
        start: the number of the first text.
    """
    for number, text in enumerate(texts, start):
        try:
            (text if isinstance(text, str) else "".join(text)).encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"text {number} cannot be encoded",
                expected="texts without lone surrogates",
                received=str(error),
                remedy="mend the text's encoding",
            ) from error
