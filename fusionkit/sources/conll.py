"""CoNLL columns: one word a line, a blank line ends a sentence, ``-DOCSTART-`` lines are skipped.

Two to four columns, separated by tabs where the first line has one, else by spaces. The first is the word,
the last the tag; between them part of speech and chunk. Any other white space (U+00A0, U+2028 …) is text.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from fusionkit.errors import DataError
from fusionkit.sources.text import read_lines

COLUMN_NAMES = {2: ("tokens", "tags"), 3: ("tokens", "pos", "tags"), 4: ("tokens", "pos", "chunk", "tags")}


def read_conll(path: Path) -> pa.Table:
    """Sentences as rows with list columns ``tokens``, ``tags`` and, where present, ``pos``, ``chunk``."""
    tabs, width = False, 0
    sentences: list[list[list[str]]] = []
    words: list[list[str]] = []
    for number, whole in enumerate(read_lines(path), start=1):
        line = whole.rstrip(" \t")
        if not line or line.startswith("-DOCSTART-"):
            if words:
                sentences.append(words)
                words = []
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
    if words:
        sentences.append(words)
    if not sentences:
        raise DataError(f"{path} holds no sentence", expected="lines of word … tag", received="an empty file")
    names = COLUMN_NAMES[width]
    return pa.table({name: [[word[k] for word in s] for s in sentences] for k, name in enumerate(names)})


def _fields(line: str, tabs: bool) -> list[str]:
    # Not str.split(): it would also cut words at U+00A0, U+2028 and their like.
    return line.split("\t") if tabs else re.findall(r"[^ \t]+", line)
