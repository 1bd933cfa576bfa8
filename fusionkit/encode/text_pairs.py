"""Pairs of texts: each pair as one sequence, or each distinct text of a split as its own sequence."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fusionkit.encode.batches import PaddedBatch, PartInput
from fusionkit.encode.batching import Batching
from fusionkit.encode.repeats import first_of
from fusionkit.encoder import Encoder
from fusionkit.errors import UsageError
from fusionkit.ragged import IntArray
from fusionkit.sources import Columns, Examples

Texts = Sequence[str] | Sequence[Sequence[str]]


def choose_pair_as(asked: str | None, columns: Columns, encoder: Encoder) -> str | None:
    """How pairs are encoded: as ``--pair-as`` says, else as two sequences by a sentence encoder and as one by any
    other encoder.

    Returns:
        ``one`` or ``two``; None where the examples are no pairs.

    Raises:
        UsageError: ``--pair-as`` is given and the examples are not pairs, or the first text is a list of words.
    """
    if columns.pair is None:
        if asked is not None:
            raise UsageError(
                f"--pair-as {asked} needs pairs of texts",
                expected="two columns with a text each (--text and --pair)",
                received=f"the column {columns.text or columns.tokens!r} alone",
                remedy="name the second text with --pair, or leave --pair-as out",
            )
        return None
    if columns.text is None:
        raise UsageError(
            "both sides of a pair must be columns of texts",
            expected="two columns with a text each (--text and --pair)",
            received=f"lists of words in {columns.tokens!r} beside {columns.pair!r}",
            remedy="name the first text with --text, or leave --pair out",
        )
    return asked or ("two" if encoder.of_sentences else "one")


class PairedTexts(NamedTuple):
    """The sequences of a split's pairs where they are stored as two: one for each distinct text.

    Attributes:
        sequences: of each example, int64 ``[examples, 2]``, numbered in order of first occurrence.
        is_first: bool ``[examples, 2]``, True at a text's first occurrence.
    """

    sequences: IntArray
    is_first: NDArray[np.bool_]


def paired(examples: Examples, columns: Columns) -> PairedTexts:
    """Number the distinct texts of a split's pairs."""
    digests = b"".join(
        hashlib.blake2b(text.encode(), digest_size=16).digest()
        for block in examples.batches()
        for text in _texts(block, columns)
    )
    first = first_of(digests)
    is_first = first == np.arange(len(first))
    numbers = np.cumsum(is_first) - 1
    return PairedTexts(numbers[first].reshape(-1, 2), is_first.reshape(-1, 2))


def first_occurrences(block: pa.RecordBatch, columns: Columns, is_first: NDArray[np.bool_]) -> list[str]:
    """The texts of some examples that become sequences: those that ``is_first``, ``[examples, 2]``, marks."""
    return [text for text, new in zip(_texts(block, columns), is_first.ravel().tolist(), strict=True) if new]


def live_sequences(
    texts: Texts, pairs: Sequence[str] | None, two: bool
) -> tuple[Texts, Sequence[str] | None, IntArray]:
    """The encoder's input sequences for examples in memory.

    Args:
        texts: of the examples. pairs: their second texts, if any. two: whether each distinct text is a sequence.

    Returns:
        the texts of the sequences, their second texts, and the sequences of each example, int64 ``[examples, sides]``.
    """
    if pairs is None or not two:
        return texts, pairs, np.arange(len(texts), dtype=np.int64)[:, None]
    both = [text for pair in zip(texts, pairs, strict=True) for text in pair]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(both))}
    return list(numbers), None, np.array([numbers[text] for text in both], dtype=np.int64).reshape(-1, 2)


def live_groups(
    part: PartInput, sequences: IntArray, batching: Batching, pad_id: int
) -> Iterator[tuple[IntArray, list[PaddedBatch], IntArray]]:
    """Examples in groups of bounded size; all sequences of an example are in one group.

    Args:
        sequences: int64 ``[examples, sides]``, the numbers of each example's sequences in ``part``.
        batching: of the sequences; a group has at most as many padded sub-tokens as a batch may have.

    Yields:
        the examples of a group; its distinct sequences in batches; the index of each example's sequences in the
        concatenation of these batches, int64 ``[examples · sides]``.
    """
    longest = np.diff(part.offsets)[sequences].max(axis=1)
    for examples in batching.cut(longest * sequences.shape[1]):
        wanted = sequences[examples].ravel()
        batches = list(part.batches(np.unique(wanted), batching, pad_id))
        done = np.concatenate([batch.examples for batch in batches])
        place = np.argsort(done)
        yield examples, batches, place[np.searchsorted(done[place], wanted)]


def _texts(block: pa.RecordBatch, columns: Columns) -> Iterator[str]:
    for both in zip(block.column(columns.text).to_pylist(), block.column(columns.pair).to_pylist(), strict=True):
        yield from both
