"""A source made ready for encoding: its columns checked against their roles, tags in BIO2, every example with an id."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fusionkit.errors import DataError, UsageError
from fusionkit.names import id_column
from fusionkit.plural import counted
from fusionkit.sources.columns import Columns, is_list, is_text, is_words
from fusionkit.sources.examples import Examples
from fusionkit.sources.source import Source
from fusionkit.tags import is_span_tag

TAGS = pa.list_(pa.string())
NONE = -1  # the kind of a tag outside spans


def prepared(source: Source, columns: Columns) -> tuple[Source, list[str]]:
    """The source with checked texts, BIO2 tags and an ``id`` column, and notes on the changes.

    All examples are read and checked once here; the changes are made each time the examples are read.

    Raises:
        UsageError: a column is absent from a split, or its type does not suit its role.
        DataError: a missing text, or tags that do not match their words, with the example named.
    """
    notes: list[str] = []
    splits: dict[str, Examples] = {}
    for split, examples in source.splits.items():
        # A column without any value has the null type: the split has no tags.
        filled = {field.name for field in examples.schema if not pa.types.is_null(field.type)}
        tags = [name for name in columns.tags if name in filled and columns.tokens is not None]
        schemes = {name: _Scheme() for name in tags}
        notes += _checked(examples, columns, schemes, split)
        iob1 = {name: scheme.is_iob1() for name, scheme in schemes.items()}
        notes += [f"{split}: column {name} held IOB1 tags, turned into BIO2" for name in tags if iob1[name]]
        splits[split] = examples.changed(partial(_mended, split, iob1))
    return replace(source, splits=splits), notes


def _mended(split: str, iob1: dict[str, bool], batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
    for name, old in iob1.items():
        column = batch.column(name)
        if old or not column.type.equals(TAGS):
            column = TagColumn.of(column).in_bio2() if old else pa.array(_tags(column), TAGS)
        batch = batch.set_column(batch.schema.get_field_index(name), name, column)
    if id_column(batch.schema.names) is None:
        ids = pa.array([f"{split}-{start + i}" for i in range(batch.num_rows)], pa.string())
        batch = batch.add_column(0, "id", ids)
    return batch


def _tags(column: pa.Array) -> list[list[str]]:
    return [[str(tag) for tag in row] for row in column.to_pylist()]


class TagColumn(NamedTuple):
    """A column of tags as numbers, so that no Python loop runs over the words.

    Attributes:
        distinct: the column's tags. numbers: of each word's tag in ``distinct``, int64 ``[words]``. offsets: of each
            sequence's words, int64 ``[sequences + 1]``.
    """

    distinct: list[str]
    numbers: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, column: pa.Array) -> Self:
        flat = pc.list_flatten(column)
        if not pa.types.is_string(flat.type):
            flat = pa.array([str(tag) for tag in flat.to_pylist()], pa.string())
        coded = pc.dictionary_encode(flat)
        offsets = np.zeros(len(column) + 1, dtype=np.int64)
        np.cumsum(pc.list_value_length(column).to_numpy(zero_copy_only=False), out=offsets[1:])
        return cls(coded.dictionary.to_pylist(), coded.indices.to_numpy().astype(np.int64), offsets)

    def opened_inside(self) -> NDArray[np.bool_]:
        """The words that open a span with an ``I-`` tag, which BIO2 forbids; as :func:`fusionkit.tags.to_bio2`."""
        kinds: dict[str, int] = {}
        kind = [kinds.setdefault(tag[2:], len(kinds)) if _in_span(tag) else NONE for tag in self.distinct]
        kind_of = np.array(kind, dtype=np.int64)[self.numbers]
        before = np.full(len(kind_of) + 1, NONE)
        before[1:] = kind_of
        before[self.offsets] = NONE
        inside = np.array([_in_span(tag) and tag.startswith("I-") for tag in self.distinct], dtype=np.bool_)
        found: NDArray[np.bool_] = inside[self.numbers] & (before[:-1] != kind_of)
        return found

    def in_bio2(self) -> pa.Array:
        """The column with ``B-`` as the first tag of each span."""
        both = pa.array(self.distinct + ["B-" + tag[2:] for tag in self.distinct], pa.string())
        tags = both.take(pa.array(self.numbers + len(self.distinct) * self.opened_inside()))
        return pa.ListArray.from_arrays(pa.array(self.offsets, pa.int32()), tags).cast(TAGS)


def _in_span(tag: str) -> bool:
    return tag != "O" and is_span_tag(tag)


@dataclass
class _Scheme:
    """The tagging scheme of a column of tags, from the values seen so far."""

    spans: bool = True  # every tag is O, B-type or I-type
    opened: bool = False  # some tag is not O
    bio2: bool = True

    def see(self, column: pa.Array) -> None:
        tags = TagColumn.of(column)
        self.spans = self.spans and all(is_span_tag(tag) for tag in tags.distinct)
        self.opened = self.opened or bool(set(tags.distinct) - {"O"})
        self.bio2 = self.bio2 and (not self.spans or not tags.opened_inside().any())

    def is_iob1(self) -> bool:
        return self.spans and self.opened and not self.bio2


def _checked(examples: Examples, columns: Columns, schemes: dict[str, _Scheme], split: str) -> list[str]:
    """Check all examples in order; each scheme sees the tags of its column. Returns notes on empty texts."""
    texts = [name for name in (columns.text, columns.pair, columns.tokens) if name is not None]
    for name in texts:
        _check_type(examples, name, split, words=name == columns.tokens)
    for name in schemes:
        _check_tags(examples, name, split)
    start, blank = 0, dict.fromkeys(texts, 0)
    for batch in examples.batches():
        for name in texts:
            _check_present(examples, batch, start, name, split)
            blank[name] += _blank(batch.column(name))
        if columns.tokens is not None:
            _check_filled(batch, start, columns.tokens, split)
            for name, scheme in schemes.items():
                _check_aligned(batch, start, columns.tokens, name, split)
                _check_filled(batch, start, name, split)
                scheme.see(batch.column(name))
        start += batch.num_rows
    notes = []
    for name, count in blank.items():
        if count:
            what = "have no word" if name == columns.tokens else "are empty or blank"
            notes.append(f"{split}: {count:,} of {start:,} {name!r} {what}")
    return notes


def _blank(column: pa.Array) -> int:
    """The number of texts that are empty or only white space, or of lists without a word."""
    if pa.types.is_null(column.type):
        return 0
    counts = pc.list_value_length(column) if is_list(column.type) else pc.utf8_length(pc.utf8_trim_whitespace(column))
    return int(pc.sum(pc.equal(counts, 0)).as_py() or 0)


def _check_type(examples: Examples, name: str, split: str, *, words: bool) -> None:
    if name not in examples.column_names:
        raise UsageError(
            f"{split} has no column {name!r}",
            expected=name,
            received=", ".join(examples.column_names),
            remedy="give the column the same name in every split, or leave that split's file out",
        )
    kind = examples.schema.field(name).type
    # A column without any value has the null type: `_check_present` then reports its first example.
    if not pa.types.is_null(kind) and not (is_words(kind) if words else is_text(kind)):
        raise UsageError(
            f"column {name!r} of {split} holds no {'words' if words else 'text'}",
            expected="lists of words" if words else "strings",
            received=str(kind),
            remedy="name the right column with --tokens for lists of words, with --text for strings",
        )


def _check_tags(examples: Examples, name: str, split: str) -> None:
    kind = examples.schema.field(name).type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or pa.types.is_nested(kind.value_type):
        raise UsageError(
            f"column {name!r} of {split} holds no tags",
            expected="a list in every example, one tag a word",
            received=str(kind),
            remedy=f"write a list of tags for every example of {split}, or drop the column",
        )


def _check_present(examples: Examples, batch: pa.RecordBatch, start: int, name: str, split: str) -> None:
    column = batch.column(name)
    if column.null_count:
        row = start + pc.index(pc.is_null(column), True).as_py()
        missing = sum(each.column(name).null_count for each in examples.batches())
        raise DataError(
            f"{split}, example {row}: column {name!r} has no value",
            expected="a text in every example",
            received=f"{missing} missing",
            remedy="remove these examples or fill them in",
        )


def _check_aligned(batch: pa.RecordBatch, start: int, tokens: str, tags: str, split: str) -> None:
    words, marks = (pc.list_value_length(batch.column(n)) for n in (tokens, tags))
    same = pc.fill_null(pc.equal(words, marks), False)
    if not pc.all(same).as_py():
        row = pc.index(same, False).as_py()
        raise DataError(
            f"{split}, example {start + row}: {tags!r} does not match {tokens!r}",
            expected=f"{counted(words[row].as_py(), 'tag')}, one a word",
            received=f"{marks[row].as_py()}",
            remedy="mend the example; tags and words are matched by position",
        )


def _check_filled(batch: pa.RecordBatch, start: int, name: str, split: str) -> None:
    column = batch.column(name)
    if pc.list_flatten(column).null_count:
        row = next(i for i, entries in enumerate(column) if entries.values.null_count)
        raise DataError(
            f"{split}, example {start + row}: {name!r} has an entry without a value",
            expected="a string for each word",
            received=str(column[row].as_py())[:80],
            remedy="mend the example",
        )
