"""The bundled corpus: well-formed, without leaks between splits, one ontology in four languages."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from fusionkit.bundled import LANGUAGES, travel_desk
from fusionkit.errors import UsageError
from fusionkit.sources import Columns, guess_columns, open_source, prepared

SPLITS = ("train", "validation", "test")
INTENTS = {
    "book_flight", "book_train", "book_hotel", "rent_car", "change_booking", "cancel_booking", "trip_status", "baggage",
    "entry_rules", "payment",
}  # fmt: skip
SLOTS = {
    "from_place", "to_place", "stay_place", "date", "return_date", "time", "duration", "carrier", "service_number",
    "hotel_name", "booking_ref", "travel_class", "people", "traveller", "price", "item",
}  # fmt: skip

Rows = dict[str, list[dict[str, Any]]]


def read(language: str) -> Rows:
    """The examples by split, read without the package's own readers."""
    files = {split: (travel_desk(language) / f"{split}.jsonl").read_text(encoding="utf-8") for split in SPLITS}
    return {split: [json.loads(line) for line in text.splitlines()] for split, text in files.items()}


def everything(rows: Rows) -> list[dict[str, Any]]:
    return [row for split in SPLITS for row in rows[split]]


def tags_of(rows: list[dict[str, Any]]) -> set[str]:
    return {tag for row in rows for tag in row["slots"]}


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text.casefold())


def test_the_corpus_has_four_languages_and_refuses_others() -> None:
    assert LANGUAGES == ("en", "de", "fr", "es")
    with pytest.raises(UsageError, match="unknown language 'it'"):
        travel_desk("it")


@pytest.mark.parametrize("language", LANGUAGES)
def test_there_are_enough_examples_in_each_split(language: str) -> None:
    rows = read(language)
    assert len(everything(rows)) >= (400 if language == "en" else 100)
    assert all(len(rows[split]) >= 20 for split in SPLITS)


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_languages_share_ten_intents_and_sixteen_slots(language: str) -> None:
    rows = everything(read(language))
    assert (len(INTENTS), len(SLOTS)) == (10, 16)
    assert {row["intent"] for row in rows} == INTENTS
    assert tags_of(rows) <= {"O"} | {f"{mark}-{slot}" for mark in "BI" for slot in SLOTS}
    counts = Counter(tag[2:] for row in rows for tag in row["slots"] if tag[0] == "B")
    assert set(counts) == SLOTS
    assert min(counts.values()) >= 6


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_split_holds_each_intent_equally_often(language: str) -> None:
    for rows in read(language).values():
        counts = Counter(row["intent"] for row in rows)
        assert set(counts.values()) == {len(rows) // 10}


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_example_has_one_bio2_tag_a_word_and_its_words_join_to_its_text(language: str) -> None:
    for row in everything(read(language)):
        assert list(row) == ["id", "text", "tokens", "slots", "intent"]
        assert len(row["tokens"]) == len(row["slots"]) > 0, row["id"]
        assert "".join(row["tokens"]) == re.sub(r"\s", "", row["text"]), row["id"]
        for before, tag in zip(["O", *row["slots"]], row["slots"], strict=False):
            assert tag[0] != "I" or before[2:] == tag[2:], row["id"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_slot_ends_in_punctuation_of_the_sentence(language: str) -> None:
    for row in everything(read(language)):
        for word, tag, after in zip(row["tokens"], row["slots"], [*row["slots"][1:], "O"], strict=True):
            ends = tag != "O" and not after.startswith("I-")
            assert not (ends and word in ",.;:!?¿¡"), row["id"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_utterance_is_in_two_splits_or_twice_in_one(language: str) -> None:
    texts = Counter(squeezed(row["text"]) for row in everything(read(language)))
    assert [text for text, count in texts.items() if count > 1] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_label_and_tag_of_validation_and_test_occurs_in_train(language: str) -> None:
    rows = read(language)
    for split in ("validation", "test"):
        assert tags_of(rows[split]) <= tags_of(rows["train"])
        assert {row["intent"] for row in rows[split]} <= {row["intent"] for row in rows["train"]}


@pytest.mark.parametrize("language", LANGUAGES)
def test_some_examples_have_no_slot_at_all(language: str) -> None:
    rows = everything(read(language))
    assert sum(set(row["slots"]) == {"O"} for row in rows) >= 0.12 * len(rows)


@pytest.mark.parametrize("language", LANGUAGES)
def test_openings_vary(language: str) -> None:
    openings = Counter(" ".join(row["tokens"][:3]).casefold() for row in everything(read(language)))
    assert max(openings.values()) <= 3


def test_ids_are_unique_and_say_language_and_split() -> None:
    ids = []
    for language in LANGUAGES:
        for split, rows in read(language).items():
            ids += [row["id"] for row in rows]
            assert [row["id"] for row in rows] == [f"{language}-{split}-{i:03d}" for i in range(len(rows))]
    assert len(ids) == len(set(ids)) == 850


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_corpus_opens_as_a_source_with_words_tags_and_labels(language: str) -> None:
    source = open_source(str(travel_desk(language)))
    columns = guess_columns(source)
    assert columns == Columns(tokens="tokens", tags=("slots",), labels=("intent",))
    mended, notes = prepared(source, columns)
    assert notes == source.notes == []
    assert {split: table.head().to_pylist() for split, table in mended.splits.items()} == read(language)


def test_the_data_card_states_the_sizes_there_are() -> None:
    card = (travel_desk("en").parent / "README.md").read_text(encoding="utf-8")
    for language in LANGUAGES:
        sizes = [len(rows) for rows in read(language).values()]
        assert f"| {language} | " + " | ".join(map(str, [*sizes, sum(sizes)])) + " |" in card
    rows = [row for language in LANGUAGES for row in everything(read(language))]
    lengths = [len(row["tokens"]) for row in rows]
    assert f"\n{min(lengths)} to {max(lengths)} tokens, {round(sum(lengths) / len(rows))} on average" in card
    bare = sum(set(row["slots"]) == {"O"} for row in rows) / len(rows)
    assert f"; {100 * bare:.0f} % of them have no slot" in card


def test_the_data_card_states_the_counts_of_each_intent_and_slot() -> None:
    card = (travel_desk("en").parent / "README.md").read_text(encoding="utf-8")
    counted = [
        Counter(row["intent"] for row in everything(read(language)))
        + Counter(tag[2:] for row in everything(read(language)) for tag in row["slots"] if tag[0] == "B")
        for language in LANGUAGES
    ]
    lines = re.findall(r"^\| `(\w+)` \|.*?\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", card, re.MULTILINE)
    assert {name for name, *_ in lines} == INTENTS | SLOTS
    for name, *counts in lines:
        assert [int(count) for count in counts] == [by_language[name] for by_language in counted], name
