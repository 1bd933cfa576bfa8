"""The columns of a CoNLL file, found from given names, from its comments, else from its first sentences.

| columns | without an index | after an index |
|---|---|---|
| 2 | tokens, tags | – |
| 3 | tokens, pos, tags | tokens, tags |
| 4 | tokens, pos, chunk, tags | tokens, column3, tags |
| 5 | – | tokens, pos, chunk, tags |
| 10 | – | CoNLL-U's: tokens, lemma, upos, xpos, feats, head, deprel, deps, misc |

An index is a first column that counts the words of each sentence. A ``global.columns`` comment names all columns, as in
CoNLL-U Plus.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import methodcaller
from pathlib import Path
from typing import NamedTuple

from fusionkit.errors import DataError, UsageError
from fusionkit.plural import counted
from fusionkit.sources.examples import refuse_repeated
from fusionkit.sources.text import read_lines
from fusionkit.tags import are_span_tags

INDEX, LEFT_OUT = "index", ("_", "-")
PLAIN = {2: ("tokens", "tags"), 3: ("tokens", "pos", "tags"), 4: ("tokens", "pos", "chunk", "tags")}
CONLLU = ("tokens", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
INDEXED = {2: PLAIN[2], 3: ("tokens", "column3", "tags"), 4: PLAIN[4], 9: CONLLU}
STANDARD = {"id": INDEX, "form": "tokens"}  # CoNLL-U Plus name → fusionkit's
LOOKED_AT, LOOKED_AT_CHARACTERS = 500, 1 << 20  # lines read to find the columns
COMMENT = re.compile(r"#[ \t]+(\S+(?: id)?)\s*=\s*(.*)")  # "newdoc id" and "newpar id" are CoNLL-U's
NUMBERED = re.compile(r"#[ \t]+id[ \t]+(\S+)[ \t]+(\S+?)=(\S*)")  # MultiCoNER's: `# id 5f3a domain=en`
COUNTED = re.compile(r"[0-9]+(-[0-9]+|\.[0-9]+)?")  # a word; a multi-word token 1-2; an empty node 1.1
GLOBAL, DOCSTART = "global.columns", "-DOCSTART-"
BY_BLANKS, BY_TABS = re.compile(r"[^ \t]+").findall, methodcaller("split", "\t")


class Sentence(NamedTuple):
    """The fields of a sentence's words, and the values of its comments by key."""

    words: list[list[str]]
    comments: dict[str, str]


@dataclass(frozen=True)
class ConllLayout:
    """The columns of a CoNLL file.

    Attributes:
        tabs: True if separated by tabs, else by blanks. width: their number. names: of the columns kept, by position.
        index: the position of the column that counts a sentence's words, if there is one.
        aside: names of columns that are left out because they repeat a comment of the sentence at each word.
    """

    tabs: bool
    width: int
    names: dict[int, str]
    index: int | None = None
    aside: tuple[str, ...] = ()

    @property
    def splitter(self) -> Callable[[str], list[str]]:
        """The function that splits a line into its fields."""
        # Not str.split(): it would also split words at U+00A0, U+2028 and other Unicode white space.
        return BY_TABS if self.tabs else BY_BLANKS

    def is_comment(self, line: str) -> bool:
        """Whether a line before a sentence's first word is a comment: it begins with ``# ``, and :func:`comments_of`
        finds values in it or it does not have one field per column, as the word ``#`` has. With an index first, ``#``
        alone is enough: no word's line begins with it.
        """
        if not line.startswith("#"):
            return False
        spaced = line == "#" or line.startswith("# ") or self.index == 0
        return spaced and (bool(comments_of(line)) or len(self.splitter(line)) != self.width)


def comments_of(line: str) -> dict[str, str]:
    """The values of a comment by name: of ``# name = value``, or ``# id VALUE name=VALUE``."""
    if found := COMMENT.fullmatch(line):
        return {found[1]: found[2]}
    if found := NUMBERED.fullmatch(line):
        return {"id": found[1], found[2]: found[3]}
    return {}


def column_names(text: str | None) -> tuple[str, ...] | None:
    """The names in ``--columns``.

    Raises:
        UsageError: one is empty or stands twice, or all are left out.
    """
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    kept = [name for name in names if name not in LEFT_OUT]
    if "" in names or len({*kept}) < len(kept) or not {*kept} - {INDEX}:
        raise UsageError(
            "--columns names each column once",
            expected="names like index,word,_,tag; '_' is left out",
            received=text,
            remedy="give each column a name of its own",
        )
    return names


def is_break(line: str) -> bool:
    """Whether a line, without the blanks at its end, ends a sentence."""
    return not line or line.startswith(DOCSTART)


def layout_of(path: Path, given: Sequence[str] | None = None) -> ConllLayout:
    """The layout of a file.

    Args:
        given: names of all columns, in order; ``index`` is the column that counts a sentence's words, and a column
            named ``_`` or ``-`` is left out.

    Raises:
        UsageError: the file has another number of columns than names were given.
        DataError: no names were given, and fusionkit knows none for this number of columns; or two columns have one
            name.
    """
    lines = _first_lines(path)
    some = [(number, line) for number, line in enumerate(lines, start=1) if not is_break(line)]
    # A line with "#" may be a comment, which has no columns. It may be a word too: the first line is the fallback.
    number, first = next((each for each in some if not each[1].startswith("#")), next(iter(some), (1, "")))
    tabs = "\t" in first
    width = len((BY_TABS if tabs else BY_BLANKS)(first))
    seen = [*_sentences(lines, ConllLayout(tabs, width, {}, 0))]
    index = 0 if width > 2 and _count_words(seen) else None
    titles = next((each.comments[GLOBAL] for each in seen if GLOBAL in each.comments), "").lower().split()
    names = [*given] if given else [STANDARD.get(title, title) for title in titles]
    if given and len(given) != width:
        raise UsageError(
            f"--columns names {counted(len(given), 'column')}, {path} has {width}",
            expected="a name for each column; '_' for one that is left out",
            received=f"{','.join(given)} for line {number}: {first[:60]!r}",
            remedy="name all columns in their order",
        )
    if given or len(names) == width:
        index = names.index(INDEX) if INDEX in names else None
    else:
        known = INDEXED.get(width - 1) if index == 0 else PLAIN.get(width)
        if known is None:
            raise _not_conll(path, number, first, width)
        names = [INDEX, *known] if index == 0 else [*known]
    kept = {at: name for at, name in enumerate(names) if at != index and name not in LEFT_OUT}
    refuse_repeated(path, [*kept.values()])
    aside = tuple(name for at, name in kept.items() if _repeats_comment(seen, at, name))
    return ConllLayout(tabs, width, {at: name for at, name in kept.items() if name not in aside}, index, aside)


def _first_lines(path: Path) -> list[str]:
    found, characters = list[str](), 0
    for line in islice(read_lines(path), LOOKED_AT):
        found.append(line.rstrip(" \t"))
        characters += len(line)
        if characters > LOOKED_AT_CHARACTERS:
            break
    return found


def _not_conll(path: Path, number: int, line: str, width: int) -> DataError:
    texts = '; texts, one a line, are read with --task mlm only: for another task write JSON lines {"text": …}'
    return DataError(
        f"{path}: line {number} is not a CoNLL line",
        expected="2 to 4 columns (word … tag), an index before them, or CoNLL-U's ten; separated by tabs or spaces",
        received=f"{counted(width, 'column')}: {line[:60]!r}",
        remedy="name the columns, e.g. --columns index,word,_,tag; or name the file .csv, .tsv or .jsonl if it is one"
        + (texts if path.suffix.lower() == ".txt" else ""),
    )


def _sentences(lines: Sequence[str], layout: ConllLayout) -> Iterator[Sentence]:
    """The first sentences; the last may be cut off."""
    words, comments = list[list[str]](), dict[str, str]()
    for line in [*lines, ""]:
        if is_break(line):
            if words:
                yield Sentence(words, comments)
            words, comments = [], {}
        elif not words and layout.is_comment(line):
            comments |= comments_of(line)
        else:
            words.append(layout.splitter(line))


def _count_words(sentences: Iterable[Sentence]) -> bool:
    """Whether the first column counts the words of each sentence, from 0 or 1 on."""
    seen = False
    for sentence in sentences:
        firsts = [fields[0] for fields in sentence.words]
        numbers = [int(text[:10]) for text in firsts if text.isdecimal()]  # no sentence has 10⁹ words
        if not all(map(COUNTED.fullmatch, firsts)) or numbers[:1] not in ([0], [1]):
            return False
        if numbers != [*range(numbers[0], numbers[0] + len(numbers))]:
            return False
        seen = True
    return seen


def _repeats_comment(sentences: Iterable[Sentence], at: int, name: str) -> bool:
    """Whether a column repeats at each word the sentence's comment of the same name."""
    told = [sentence for sentence in sentences if name in sentence.comments]
    return bool(told) and all(fields[at : at + 1] == [each.comments[name]] for each in told for fields in each.words)


def looks_like_conll(path: Path) -> bool:
    """Whether a ``.tsv`` file holds sentences, one word per line, and not a table with a header.

    Sentences have empty lines between them, and span tags in the last column, an index in the first, or comments.
    """
    lines = _first_lines(path)
    width = next((len(BY_TABS(line)) for line in lines if line and not line.startswith("#")), 0)
    if width < 2 or "" not in lines[: max(at for at, line in enumerate(lines) if line)]:
        return False
    sentences = [*_sentences(lines, ConllLayout(tabs=True, width=width, names={}, index=0))]
    words = [fields for sentence in sentences for fields in sentence.words]
    if any(len(fields) != width for fields in words):
        return False
    spans = are_span_tags(fields[-1] for fields in words)
    return spans or _count_words(sentences) or any(sentence.comments for sentence in sentences)
