"""Column roles: guessed from names and types, overridable one by one, checked against the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fusionkit.errors import DataError, UsageError, unknown_name
from fusionkit.sources.source import Source
from fusionkit.tags import are_span_tags, is_bio2, to_bio2

TOKENS = ("tokens", "words", "token", "word")
TEXTS = (
    "text",
    "sentence",
    "sentence1",
    "premise",
    "question1",
    "question",
    "utterance",
    "document",
    "content",
)
PAIRS = {
    "sentence1": "sentence2", "premise": "hypothesis", "question1": "question2",
    "question": "sentence", "text": "text_pair", "text1": "text2", "text_a": "text_b",
}  # fmt: skip
LABELS = ("label", "labels", "intent", "category", "class", "target", "score", "sentiment", "topic")
TAGS = ("tags", "ner_tags", "slots", "ner", "labels", "pos_tags", "pos", "chunk_tags", "chunk")
IDS = ("id", "idx", "guid")


@dataclass(frozen=True)
class Columns:
    """Which column plays which role.

    Attributes:
        text, pair: the text and, for sentence pairs, the second text.
        tokens: the words, where the source splits them.
        tags: columns with one tag a word, best guess first.
        labels: columns with one label an example, best guess first.
    """

    text: str | None = None
    pair: str | None = None
    tokens: str | None = None
    tags: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values; tuples become lists."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Columns:
        """The inverse of :meth:`to_dict`."""
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**plain)

    def __str__(self) -> str:
        roles = ((k, ", ".join(v) if isinstance(v, tuple) else v) for k, v in asdict(self).items())
        return " · ".join(f"{role} = {column}" for role, column in roles if column)


def guess_columns(
    source: Source, *, text: str | None = None, pair: str | None = None, tokens: str | None = None
) -> Columns:
    """The roles of a source's columns; a role given by name wins over the guess.

    Raises:
        UsageError: a named column does not exist, or nothing looks like a text.
    """
    table = next(iter(source.splits.values()))
    for role, name in (("--text", text), ("--pair", pair), ("--tokens", tokens)):
        if name is not None and name not in table.column_names:
            error = unknown_name("column", name, table.column_names)
            raise UsageError(f"{role}: {error.what}", expected=error.expected, received=name, remedy=error.remedy)
    lists = [name for name in table.column_names if _is_list(table.column(name))]
    words = [name for name in lists if _is_words(table.column(name))]
    strings = [name for name in table.column_names if pa.types.is_string(_type(table.column(name)))]
    if text is None and tokens is None:
        # Named columns first: a text beside a list of keywords or of class numbers is still the text.
        tokens = _first(TOKENS, words)
        text = None if tokens else _first((*PAIRS, *TEXTS), strings)
    if text is None and tokens is None:
        unnamed = [name for name in words if name.lower() not in (*TAGS, *LABELS)]
        tokens = max(unnamed, key=lambda n: _distinct(table.column(n)), default=None)
    if text is None and tokens is None:
        text = _longest(table, [name for name in strings if name.lower() not in (*IDS, *LABELS)])
    if text is None and tokens is None:
        raise UsageError(
            f"no column of {source.name} looks like a text",
            expected="a column of strings, or of lists of words",
            received=", ".join(f"{n} ({table.column(n).type})" for n in table.column_names),
            remedy="name it with --text or --tokens",
        )
    if pair is None and text is not None and (second := PAIRS.get(text.lower())):
        pair = _first((second,), strings)
    used = {text, pair, tokens}
    tags = _tag_columns(table, tokens, [n for n in lists if n not in used]) if tokens else ()
    labels = tuple(n for n in _by_name(LABELS, table.column_names) if n not in used and n not in lists)
    labels += tuple(
        n
        for n in strings
        if n not in used and n not in labels and n.lower() not in IDS and _few_values(table.column(n))
    )
    return Columns(text=text, pair=pair, tokens=tokens, tags=tags, labels=labels)


def prepared(source: Source, columns: Columns) -> tuple[Source, list[str]]:
    """The source with checked texts, BIO2 tags and an ``id`` column, and what was changed.

    Raises:
        UsageError: a column is absent from a split, or its type does not suit its role.
        DataError: a missing text, or tags that do not match their words, with the example named.
    """
    notes: list[str] = []
    splits: dict[str, pa.Table] = {}
    for split, original in source.splits.items():
        table = original
        for name in (columns.text, columns.pair, columns.tokens):
            if name is not None:
                _check_present(table, name, split, words=name == columns.tokens)
        for name in columns.tags:
            if name not in table.column_names or columns.tokens is None:
                continue
            _check_aligned(table, columns.tokens, name, split)
            _check_filled(table, name, split)
            tags = [[str(tag) for tag in row] for row in table.column(name).to_pylist()]
            if are_span_tags(tag for row in tags for tag in row) and not all(is_bio2(row) for row in tags):
                tags = [to_bio2(row) for row in tags]
                notes.append(f"{split}: column {name} held IOB1 tags, turned into BIO2")
            table = table.set_column(table.column_names.index(name), name, pa.array(tags, pa.list_(pa.string())))
        if not any(name in table.column_names for name in IDS):
            table = table.add_column(0, "id", pa.array([f"{split}-{i}" for i in range(table.num_rows)]))
        splits[split] = table.combine_chunks()
    return replace(source, splits=splits), notes


def _type(column: pa.ChunkedArray) -> pa.DataType:
    # Hub files hold large_string or string views; the roles do not differ.
    large = (pa.types.is_large_string, pa.types.is_string_view)
    return pa.string() if any(test(column.type) for test in large) else column.type


def _is_list(column: pa.ChunkedArray) -> bool:
    kind = column.type
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and bool(
        pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type)
        or pa.types.is_integer(kind.value_type)
    )  # fmt: skip


def _is_words(column: pa.ChunkedArray) -> bool:
    return _is_list(column) and not bool(pa.types.is_integer(column.type.value_type))


def _distinct(column: pa.ChunkedArray) -> int:
    return len(pc.unique(pc.list_flatten(column.slice(0, 1000))))


def _by_name(wanted: tuple[str, ...], names: list[str]) -> list[str]:
    lower = {name.lower(): name for name in names}
    return [lower[name] for name in wanted if name in lower]


def _first(wanted: tuple[str, ...], names: list[str]) -> str | None:
    return next(iter(_by_name(wanted, names)), None)


def _longest(table: pa.Table, strings: list[str]) -> str | None:
    # Without a telling name: the strings that are longest on average.
    lengths = {n: pc.mean(pc.utf8_length(table.column(n).slice(0, 1000))).as_py() or 0 for n in strings}
    return max(lengths, key=lambda n: lengths[n], default=None)


def _few_values(column: pa.ChunkedArray) -> bool:
    return len(pc.unique(column)) <= max(2, min(200, len(column) // 4))


def _tag_columns(table: pa.Table, tokens: str, lists: list[str]) -> tuple[str, ...]:
    words = pc.list_value_length(table.column(tokens).slice(0, 100))
    ordered = _by_name(TAGS, lists) + [name for name in lists if name.lower() not in TAGS]
    # A list column counts as tags where most rows have as many entries as words: a ragged
    # one must still be recognised, so that it can be reported.
    return tuple(
        name
        for name in ordered
        if (pc.mean(pc.equal(pc.list_value_length(table.column(name).slice(0, 100)), words)).as_py() or 0) >= 0.5
    )


def _check_present(table: pa.Table, name: str, split: str, *, words: bool) -> None:
    if name not in table.column_names:
        raise UsageError(f"{split} has no column {name!r}", expected=name, received=", ".join(table.column_names))
    column = table.column(name)
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise DataError(
            f"{split}, example {row}: column {name!r} has no value",
            expected="a text in every example",
            received=f"{column.null_count} missing",
            remedy="remove these examples or fill them in",
        )
    if not (_is_words(column) if words else pa.types.is_string(_type(column))):
        raise UsageError(
            f"column {name!r} of {split} holds no {'words' if words else 'text'}",
            expected="lists of words" if words else "strings",
            received=str(column.type),
            remedy="name the right column with --tokens for lists of words, with --text for strings",
        )
    if words:
        _check_filled(table, name, split)


def _check_aligned(table: pa.Table, tokens: str, tags: str, split: str) -> None:
    words, marks = (pc.list_value_length(table.column(n)) for n in (tokens, tags))
    same = pc.fill_null(pc.equal(words, marks), False)
    if not pc.all(same).as_py():
        row = pc.index(same, False).as_py()
        raise DataError(
            f"{split}, example {row}: {tags!r} does not match {tokens!r}",
            expected=f"{words[row].as_py()} tags, one a word",
            received=f"{marks[row].as_py()}",
            remedy="mend the example; tags and words are matched by position",
        )


def _check_filled(table: pa.Table, name: str, split: str) -> None:
    column = table.column(name)
    if pc.list_flatten(column).null_count:
        row = next(i for i, entries in enumerate(column) if entries.values.null_count)
        raise DataError(
            f"{split}, example {row}: {name!r} has an entry without a value",
            expected="a string for each word",
            received=str(column[row].as_py())[:80],
            remedy="mend the example",
        )
