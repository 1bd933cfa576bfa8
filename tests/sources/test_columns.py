"""Column roles: guessed from names and types, given by name, told apart from their look-alikes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from fusionkit.errors import UsageError
from fusionkit.sources import Columns, Source, guess_columns, prepared

LONG = ["a fairly long sentence", "another one of these"] * 8


def source_of(**columns: Any) -> Source:
    return Source("corpus", {"train": pa.table(columns)})


GUESSES: list[tuple[dict[str, Any], Columns]] = [
    ({"text": LONG, "label": [0, 1] * 8}, Columns(text="text", labels=("label",))),
    ({"sentence": LONG, "idx": [*range(16)]}, Columns(text="sentence")),
    ({"sentence1": LONG, "sentence2": LONG, "score": [1.5] * 16}, Columns("sentence1", "sentence2", labels=("score",))),
    ({"premise": LONG, "hypothesis": LONG, "label": [0] * 16}, Columns("premise", "hypothesis", labels=("label",))),
    ({"question1": LONG, "question2": LONG}, Columns("question1", "question2")),
    ({"question": LONG, "sentence": LONG}, Columns("question", "sentence")),
    ({"Sentence1": LONG, "Sentence2": LONG, "Label": [1] * 16}, Columns("Sentence1", "Sentence2", labels=("Label",))),
    ({"tokens": [["a", "b"]] * 16, "ner_tags": [[0, 1]] * 16}, Columns(tokens="tokens", tags=("ner_tags",))),
    (
        {"tokens": [["a", "b"]], "pos": [["X", "Y"]], "tags": [["O", "O"]], "intent": ["x"], "text": ["a b"]},
        Columns(tokens="tokens", tags=("tags", "pos"), labels=("intent",)),
    ),
    # No telling name: the strings that are longest, the list with the most different words.
    ({"title": ["hi"] * 16, "review": LONG, "stars": ["a", "b"] * 8}, Columns("review", labels=("stars",))),
    ({"mots": [["un", "deux"]] * 16, "marques": [["O", "O"]] * 16}, Columns(tokens="mots", tags=("marques",))),
    # Most rows have no list, so they have no tag for each word.
    (
        {"tokens": [["a", "b"]] * 4, "tags": [["O", "O"]] * 4, "notes": [["u", "v"], None, None, None]},
        Columns(tokens="tokens", tags=("tags",)),
    ),
    # A text beside lists that are no words of it is still the text.
    ({"text": LONG, "labels": [[1, 2]] * 16, "id": ["x"] * 16}, Columns(text="text")),
    ({"text": LONG, "labels": [[0.0, 1.0]] * 16, "label": [{"id": 1}] * 16}, Columns(text="text")),
    ({"text": LONG, "keywords": [["u", "v", "w"]] * 16}, Columns(text="text")),
    ({"text": LONG, "tokens": [[101, 102]] * 16}, Columns(text="text")),
    # Few different values make a label; identifiers and free text do not.
    ({"text": LONG, "ID": ["p", "q"] * 8, "kind": ["u", "v"] * 8}, Columns(text="text", labels=("kind",))),
    ({"text": LONG, "note": [f"note {i}" for i in range(16)]}, Columns(text="text")),
    # The gold label goes before others, also as a number.
    (
        {"sentence1": LONG, "sentence2": LONG, "genre": ["u", "v"] * 8, "gold": [0, 1] * 8},
        Columns("sentence1", "sentence2", labels=("gold", "genre")),
    ),
    (
        {"premise": LONG, "hypothesis": LONG, "label": [0, 1] * 8, "gold_label": ["yes", "-"] * 8},
        Columns("premise", "hypothesis", labels=("gold_label", "label")),
    ),
]


def test_roles_are_guessed_from_names_and_types() -> None:
    seen = 0
    for columns, expected in GUESSES:
        assert guess_columns(source_of(**columns)) == expected, columns
        seen += 1
    assert seen == 20


def test_large_strings_are_texts() -> None:
    kind = pa.large_string()
    table = pa.table({"text": pa.array(LONG, kind), "label": pa.array(["x", "y"] * 8, kind)})
    assert guess_columns(Source("corpus", {"train": table})) == Columns(text="text", labels=("label",))


def test_large_lists_of_words_are_tokens() -> None:
    words = pa.array([["a", "b"], ["c"]], pa.large_list(pa.large_string()))
    table = pa.table({"tokens": words, "tags": pa.array([["O", "O"], ["O"]])})
    expected = Columns(tokens="tokens", tags=("tags",))
    assert guess_columns(Source("corpus", {"train": table})) == expected


def test_a_column_given_by_name_wins_over_the_guess() -> None:
    source = source_of(text=LONG, sentence=LONG, other=LONG, tokens=[["a"]] * 16, words=[["b"]] * 16)
    assert guess_columns(source).tokens == "tokens"
    assert guess_columns(source, tokens="words").tokens == "words"
    given = guess_columns(source, text="sentence", pair="other")
    assert (given.text, given.pair, given.tokens) == ("sentence", "other", None)


def test_a_tag_column_that_is_ragged_somewhere_is_still_recognised() -> None:
    columns = guess_columns(source_of(tokens=[["a", "b"]] * 3, tags=[["O", "O"], ["O", "O"], ["O"]]))
    assert columns.tags == ("tags",)


def test_a_list_of_another_length_is_no_tag_column() -> None:
    columns = guess_columns(source_of(tokens=[["a", "b"]] * 3, spans=[[1], [2], []]))
    assert columns.tags == ()


def test_strings_given_as_tokens_are_refused() -> None:
    source = source_of(text=LONG, tags=[["O"]] * 16)
    with pytest.raises(UsageError, match="column 'text' of train holds no words"):
        prepared(source, guess_columns(source, tokens="text"))


@pytest.mark.parametrize(("role", "flag"), [("text", "--text"), ("pair", "--pair"), ("tokens", "--tokens")])
def test_an_unknown_column_names_the_flag_and_the_nearest(role: str, flag: str) -> None:
    source = source_of(sentence=LONG, words=[["a"]] * 16)
    with pytest.raises(UsageError) as caught:
        guess_columns(source, **{role: "sentense"})
    assert str(caught.value).startswith(f"{flag}: unknown column 'sentense'")
    assert "did you mean 'sentence'?" in str(caught.value)


@pytest.mark.parametrize(
    "columns",
    [
        {"x": [1], "y": [2.5]},
        {"id": ["a"], "label": ["b"]},
        {"tokens": [[["a"], ["b"]]], "tags": [["O", "O"]]},  # sentences of sentences
        {"tokens": [[1, 2]], "tags": [["O", "O"]]},
        {"tokens": [[]], "tags": [[]], "intent": ["x"]},
    ],
)
def test_a_source_without_a_text_is_refused_with_what_it_has(columns: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no column of corpus looks like a text") as caught:
        guess_columns(source_of(**columns))
    assert caught.value.remedy == "name it with --text or --tokens"
    assert caught.value.received is not None
    assert all(name in caught.value.received for name in columns)


def test_columns_are_shown_role_by_role() -> None:
    assert str(Columns("a", labels=("x", "y"))) == "text = a · labels = x, y"


def test_a_column_is_no_label_however_late_its_values_become_many() -> None:
    values = {"kind": ["u", "v"] * 1500, "note": ["u"] * 2799 + [f"note {i}" for i in range(201)]}
    source = source_of(text=[f"sentence {i}" for i in range(3000)], **values)
    assert guess_columns(source) == Columns(text="text", labels=("kind",))
    few = source_of(text=[f"sentence {i}" for i in range(3000)], note=[*values["note"][:-2], "u", "u"])
    assert guess_columns(few) == Columns(text="text", labels=("note",))  # 200 different values, the most there may be


@pytest.mark.parametrize(
    ("roles", "what"),
    [
        ({"text": "a", "tokens": "words"}, "--text and --tokens both name what is encoded"),
        ({"text": "a", "pair": "a"}, "both texts of a pair are the column 'a'"),
    ],
)
def test_roles_that_contradict_each_other_are_refused(roles: dict[str, str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        guess_columns(source_of(a=LONG, words=[["a"]] * 16), **roles)


def test_the_second_text_of_a_pair_is_not_guessed_to_be_the_first() -> None:
    found = guess_columns(source_of(text=LONG, title=LONG), pair="text")
    assert (found.text, found.pair) == ("title", "text")
