"""CoNLL columns: one word a line, a blank line ends a sentence, ``-DOCSTART-`` lines are skipped.

Two to four columns, separated by tabs where the first line has one, else by spaces. The first is the word,
the last the tag; between them part of speech and chunk. Any other white space (U+00A0, U+2028 …) is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from fusionkit.errors import DataError
from fusionkit.sources.text import in_pieces, read_lines

COLUMN_NAMES = {2: ("tokens", "tags"), 3: ("tokens", "pos", "tags"), 4: ("tokens", "pos", "chunk", "tags")}
Sentence = list[list[str]]


def read_conll(path: Path) -> Iterator[pa.RecordBatch]:
    """Sentences as rows with list columns ``tokens``, ``tags`` and, where present, ``pos``, ``chunk``."""
    for sentences in in_pieces(_sentences(path)):
        yield _piece(sentences)


def _piece(sentences: list[Sentence]) -> pa.RecordBatch:
    names = COLUMN_NAMES[len(sentences[0][0])]
    return pa.record_batch(
        {name: pa.array([[word[k] for word in s] for s in sentences]) for k, name in enumerate(names)}
    )


def _sentences(path: Path) -> Iterator[tuple[Sentence, int]]:
    tabs, width, characters, empty = False, 0, 0, True
    words: Sentence = []
    for number, whole in enumerate(read_lines(path), start=1):
        line = whole.rstrip(" \t")
        if not line or line.startswith("-DOCSTART-"):
            if words:
                yield words, characters
                words, characters, empty = [], 0, False
            continue
        if not width:
            tabs = "\t" in line
            width = len(_fields(line, tabs))
            if width not in COLUMN_NAMES:
                raise DataError(
                    f"{path}: line {number} is not a CoNLL line",
                    expected="2 to 4 columns (word … tag), separated by tabs or spaces",
                    received=f"{width} column{'s' if width > 1 else ''}: {line[:60]!r}",
                    remedy="name the file .csv, .tsv or .jsonl if it holds one of those",
                )
        fields = _fields(line, tabs)
        if len(fields) != width or not all(fields):
            raise DataError(
                f"{path}: line {number} has ragged columns",
                expected=f"{width} columns as in the lines before",
                received=f"{len(fields)}{'' if all(fields) else ', one of them empty'}: {line[:60]!r}",
                remedy="mend the line; sentences are separated by an empty line",
            )
        words.append(fields)
        characters += len(line)
    if words:
        yield words, characters
    elif empty:
        raise DataError(f"{path} holds no sentence", expected="lines of word … tag", received="an empty file")


def _fields(line: str, tabs: bool) -> list[str]:
    # Not str.split(): it would also cut words at U+00A0, U+2028 and their like.
    return line.split("\t") if tabs else re.findall(r"[^ \t]+", line)
