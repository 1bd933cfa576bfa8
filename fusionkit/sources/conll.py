"""CoNLL columns: one word a line, a blank line ends a sentence, ``-DOCSTART-`` lines are skipped.

Columns are separated by tabs where the first word's line has one, else by spaces; :mod:`fusionkit.sources.conll_layout`
says what they are. Any other white space (U+00A0, U+2028 …) is text. Comments ``# key = value`` before a sentence's
first word are columns of the example. In CoNLL-U only syntactic words are kept: lines of multi-word tokens (``1-2``)
and of empty nodes (``1.1``) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from fusionkit.errors import DataError
from fusionkit.plural import counted
from fusionkit.sources.conll_layout import COUNTED, GLOBAL, ConllLayout, Sentence, comments_of, is_break, layout_of
from fusionkit.sources.text import in_pieces, read_lines

MOST_KEYS = 64  # of comments, because each key is a column of every example


@dataclass
class _LeftOut:
    """What is left out of a file's examples."""

    tokens: int = 0
    nodes: int = 0
    keys: set[str] = field(default_factory=set)

    def notes(self, name: str) -> list[str]:
        found = []
        if self.tokens or self.nodes:
            several = [(self.tokens, "multi-word token"), (self.nodes, "empty node")]
            found.append(f"{' and '.join(counted(n, what) for n, what in several if n)} (their words stay)")
        if self.keys:
            found.append(f"comments of {counted(len(self.keys), 'key')} beyond the first {MOST_KEYS}")
        return [f"{name}: left out: {'; '.join(found)}"] if found else []


def read_conll(
    path: Path, names: Sequence[str] | None = None, notes: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Sentences as rows: a list column for each column of the file, a text column for each key of comments.

    Args:
        names: of all columns, as :func:`fusionkit.sources.conll_layout.layout_of` takes them.
        notes: gets a line with what was left out, once all has been read.
    """
    layout, left = layout_of(path, names), _LeftOut()
    notes = [] if notes is None else notes
    if layout.aside:
        notes.append(f"{path.name}: {', '.join(layout.aside)} of the words is left out: the comments say the same")
    keys: dict[str, None] = {}
    for sentences in in_pieces(_sentences(path, layout, left)):
        for sentence in sentences:
            fresh = [key for key in sentence.comments if key not in keys]
            left.keys.update(fresh[MOST_KEYS - len(keys) :])
            keys |= dict.fromkeys(fresh[: MOST_KEYS - len(keys)])
        yield _piece(sentences, layout, keys)
    notes += left.notes(path.name)


def _piece(sentences: list[Sentence], layout: ConllLayout, keys: dict[str, None]) -> pa.RecordBatch:
    texts = {key: pa.array([s.comments.get(key) for s in sentences], pa.string()) for key in keys}
    lists = {
        name: pa.array([[word[at] for word in s.words] for s in sentences], pa.list_(pa.string()))
        for at, name in layout.names.items()
    }
    return pa.record_batch({**texts, **lists})


def _sentences(path: Path, layout: ConllLayout, left: _LeftOut) -> Iterator[tuple[Sentence, int]]:
    characters, empty = 0, True
    words, comments = list[list[str]](), dict[str, str]()
    fields_of, width, index = layout.splitter, layout.width, layout.index
    for number, whole in enumerate(read_lines(path), start=1):
        line = whole.rstrip(" \t")
        if is_break(line):
            if words:
                yield Sentence(words, comments), characters
                words, characters, empty = [], 0, False
            comments = {}
        elif not words and line[0] == "#" and layout.is_comment(line):
            left_out = {GLOBAL, *layout.names.values()}
            if found := {name: value for name, value in comments_of(line).items() if name not in left_out}:
                comments |= found
                characters += len(line)
        else:
            fields = fields_of(line)
            if len(fields) != width or not all(fields):
                raise _ragged(path, number, line, fields, width)
            if index is None or _is_word(path, number, fields[index], index, left):
                words.append(fields)
                characters += len(line)
    if words:
        yield Sentence(words, comments), characters
    elif empty:
        raise DataError(f"{path} holds no sentence", expected="lines of word … tag", received="an empty file")


def _is_word(path: Path, number: int, count: str, index: int, left: _LeftOut) -> bool:
    """Whether the line with this index has a word; what is left out is counted."""
    if not COUNTED.fullmatch(count):
        raise DataError(
            f"{path}: line {number} has no index",
            expected=f"a number in column {index + 1}, as in the sentences before",
            received=repr(count[:60]),
            remedy="mend the line, or name the columns: --columns word,…,tag",
        )
    left.tokens += "-" in count
    left.nodes += "." in count
    return count.isdecimal()


def _ragged(path: Path, number: int, line: str, fields: list[str], width: int) -> DataError:
    hint = "; a comment begins with '# ' and stands before a sentence's first word" if line[0] == "#" else ""
    return DataError(
        f"{path}: line {number} has ragged columns",
        expected=f"{counted(width, 'column')} as in the lines before",
        received=f"{len(fields)}{'' if all(fields) else ', one of them empty'}: {line[:60]!r}",
        remedy=f"mend the line; sentences are separated by an empty line{hint}",
    )
