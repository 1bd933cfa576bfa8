"""Column roles: guessed from names and types, overridable one by one."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from fusionkit.errors import UsageError, unknown_name
from fusionkit.names import IDS
from fusionkit.printable import one_line
from fusionkit.sources.examples import Examples
from fusionkit.sources.source import Source

LOOKED_AT = 1000  # examples that the roles are guessed from

TOKENS = ("tokens", "words", "token", "word", "form")
TEXTS = ("text", "sentence", "sentence1", "premise", "question1", "question", "utterance", "document", "content")
PAIRS = {
    "sentence1": "sentence2", "premise": "hypothesis", "question1": "question2",
    "question": "sentence", "text": "text_pair", "text1": "text2", "text_a": "text_b",
}  # fmt: skip
LABELS = (
    "gold_label", "gold", "label", "labels", "intent", "category", "class", "target", "score", "sentiment", "topic",
)  # fmt: skip
TAGS = ("tags", "ner_tags", "slots", "slot", "tag", "ner", "labels", "upos", "pos_tags", "pos", "chunk_tags", "chunk")
NUMBER = r"^[0-9]+([-.,][0-9]+)?$"
SHOWN, SHOWN_CHARACTERS = 2, 60  # columns of a role, and characters of a value, in the first example


@dataclass(frozen=True)
class Columns:
    """The roles of a source's columns.

    Attributes:
        text, pair: the text and, for sentence pairs, the second text.
        tokens: the words, where the source splits them.
        tags: columns with one tag per word, best guess first.
        labels: columns with one label per example, best guess first.
    """

    text: str | None = None
    pair: str | None = None
    tokens: str | None = None
    tags: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        roles = ((k, ", ".join(v) if isinstance(v, tuple) else v) for k, v in asdict(self).items())
        return " · ".join(f"{role} = {column}" for role, column in roles if column)


def guess_columns(
    source: Source, *, text: str | None = None, pair: str | None = None, tokens: str | None = None
) -> Columns:
    """The roles of a source's columns; a role given by name wins over the guess.

    Raises:
        UsageError: a named column does not exist, one column is named for two roles, or nothing looks like a text.
    """
    examples = next(iter(source.splits.values()))
    names = examples.column_names
    for role, name in (("--text", text), ("--pair", pair), ("--tokens", tokens)):
        if name is not None and name not in names:
            raise unknown_name("column", name, names).at(role)
    if text is not None and tokens is not None:
        raise UsageError(
            "--text and --tokens both name what is encoded",
            expected="one of them",
            received=f"--text {text} --tokens {tokens}",
            remedy="leave one of them out",
        )
    types = {field.name: field.type for field in examples.schema}
    first = examples.head(LOOKED_AT)
    lists = [name for name in names if is_list(types[name])]
    words = [name for name in lists if is_words(types[name])]
    strings = [name for name in names if is_text(types[name]) and name != pair]
    if text is None and tokens is None:
        # Named columns first: a text beside a list of keywords or of class numbers is still the text.
        tokens = _first(TOKENS, words)
        text = None if tokens else _first((*PAIRS, *TEXTS), strings)
    if text is None and tokens is None:
        unnamed = [name for name in words if name.lower() not in (*TAGS, *LABELS)]
        tokens = max(unnamed, key=lambda n: len(pc.unique(pc.list_flatten(first.column(n)))), default=None)
    if text is None and tokens is None:
        text = _longest(first, [name for name in strings if name.lower() not in (*IDS, *LABELS)])
    if text is None and tokens is None:
        raise UsageError(
            f"no column of {source.name} looks like a text",
            expected="a column of strings, or of lists of words",
            received=", ".join(f"{name} ({types[name]})" for name in names),
            remedy="name it with --text or --tokens",
        )
    if pair is None and text is not None and (second := PAIRS.get(text.lower())):
        pair = _first((second,), strings)
    if text is not None and pair == text:
        raise UsageError(
            f"both texts of a pair are the column {text!r}",
            expected="two columns, --text and --pair",
            remedy="name the other one",
        )
    if tokens is not None:
        _refuse_numbers(source, first, tokens)
    used = {text, pair, tokens}
    tags = _tag_columns(first, tokens, [n for n in lists if n not in used]) if tokens in lists else ()
    labels = tuple(n for n in _by_name(LABELS, names) if n not in used and not pa.types.is_nested(types[n]))
    others = [n for n in strings if n not in used and n not in labels and n.lower() not in IDS]
    return Columns(text=text, pair=pair, tokens=tokens, tags=tags, labels=labels + _with_few_values(examples, others))


def first_example(source: Source, columns: Columns) -> str:
    """The first example as it will be read, on one line: each column that has a role with its value."""
    row = next(iter(source.splits.values())).head(1).to_pylist()[0]
    names = [columns.text, columns.pair, columns.tokens, *columns.tags[:SHOWN], *columns.labels[:SHOWN]]
    values = {name: row[name] for name in names if name is not None}
    texts = {k: " ".join(map(str, v)) if isinstance(v, list) else str(v) for k, v in values.items()}
    return " · ".join(f"{name} = {one_line(text, SHOWN_CHARACTERS)}" for name, text in texts.items())


def _refuse_numbers(source: Source, first: pa.Table, tokens: str) -> None:
    """Refuse a column of words that are all numbers: it counts the words and holds none."""
    column = first.column(tokens)
    if not is_words(column.type):
        return
    words = pc.list_flatten(column)
    if not len(words) or not pc.all(pc.match_substring_regex(words, NUMBER)).as_py():
        return
    raise UsageError(
        f"column {tokens!r} of {source.name} holds numbers only",
        expected="words",
        received=one_line(" ".join(map(str, words[:12].to_pylist())), SHOWN_CHARACTERS),
        remedy="name the column of words with --tokens, or a CoNLL file's columns with --columns index,word,…",
    )


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is a string, or a large string as in hub files."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list of words or of class numbers."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and bool(
        pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type)
        or pa.types.is_integer(kind.value_type)
    )  # fmt: skip


def is_words(kind: pa.DataType) -> bool:
    return is_list(kind) and not bool(pa.types.is_integer(kind.value_type))


def _by_name(wanted: tuple[str, ...], names: list[str]) -> list[str]:
    lower = {name.lower(): name for name in names}
    return [lower[name] for name in wanted if name in lower]


def _first(wanted: tuple[str, ...], names: list[str]) -> str | None:
    return next(iter(_by_name(wanted, names)), None)


def _longest(first: pa.Table, strings: list[str]) -> str | None:
    # Without a telling name: the strings that are longest on average.
    lengths = {n: pc.mean(pc.utf8_length(first.column(n))).as_py() or 0 for n in strings}
    return max(lengths, key=lambda n: lengths[n], default=None)


def _with_few_values(examples: Examples, names: list[str]) -> tuple[str, ...]:
    """The columns with so few different values, but more than one, that they are labels."""
    most = max(2, min(200, examples.num_rows // 4))
    seen: dict[str, pa.Array] = {}
    left = list(names)
    for batch in examples.batches() if left else ():
        for name in left:
            fresh = pc.unique(batch.column(name))
            seen[name] = pc.unique(pa.concat_arrays([seen[name], fresh])) if name in seen else fresh
        left = [name for name in left if len(seen[name]) <= most]
        if not left:
            break
    return tuple(name for name in left if len(seen[name].drop_null()) > 1)


def _tag_columns(first: pa.Table, tokens: str, lists: list[str]) -> tuple[str, ...]:
    words = pc.list_value_length(first.column(tokens).slice(0, 100))
    ordered = _by_name(TAGS, lists) + [name for name in lists if name.lower() not in TAGS]

    def share(name: str) -> float:
        as_long = pc.equal(pc.list_value_length(first.column(name).slice(0, 100)), words)
        found: float | None = pc.mean(pc.fill_null(as_long, False)).as_py()
        return found or 0.0

    # A list column counts as tags where most rows have as many entries as words: a ragged
    # one must still be recognised, so that it can be reported.
    return tuple(name for name in ordered if share(name) >= 0.5)
