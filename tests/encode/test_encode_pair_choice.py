"""Whether a pair is one sequence or two: the default by the encoder, the choice, and what it makes of an old store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from fusionkit.encode import EncodeReport, encode
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.errors import IdentityError, UsageError
from fusionkit.sources import Columns, Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import open_store

Encoding = Callable[..., EncodeReport]


@pytest.fixture(scope="module")
def sentence_encoder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The tiny encoder in a folder that says how sentences are pooled, as sentence-transformers writes it."""
    place = tmp_path_factory.mktemp("models") / "sentences"
    shutil.copytree(folder, place)
    (place / "1_Pooling").mkdir()
    (place / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    return load_encoder(str(place), device="cpu")


def test_a_store_of_one_is_what_it_was_before_there_was_a_choice(
    pairs: Source, encoded: Encoding, tmp_path: Path
) -> None:
    """The same name, no new field: runs over it are found again, and an earlier store is complete."""
    manifest = encoded(pairs, tmp_path / "s", pair_as="one").manifest
    assert "pair_as" not in manifest["identity"]
    fields = {"examples", "rows", "tokens", "masked", "cut", "rows_per_chunk", "chunks"}
    assert {frozenset(split) for split in manifest["splits"].values()} == {frozenset(fields)}
    assert encoded(pairs, tmp_path / "s").outcome == "complete"  # the tiny encoder is none of sentences
    two = encoded(pairs, tmp_path / "t", pair_as="two").manifest
    assert two["identity"] == {**manifest["identity"], "pair_as": "two"}
    assert {frozenset(split) for split in two["splits"].values()} == {frozenset(fields | {"sequences"})}


def test_the_default_follows_the_encoder_and_a_choice_wins(
    pairs: Source, encoder: Encoder, sentence_encoder: Encoder, minilm: Encoder, tmp_path: Path
) -> None:
    assert [each.of_sentences for each in (encoder, sentence_encoder, minilm)] == [False, True, True]
    assert sentence_encoder.sentence_rows == "cls"  # a sentence encoder all the same
    columns = guess_columns(pairs)
    for number, (model, asked, sides) in enumerate(
        [(encoder, None, 1), (sentence_encoder, None, 2), (encoder, "two", 2), (sentence_encoder, "one", 1)]
    ):
        out = tmp_path / str(number)
        encode(pairs, columns, out, EncodeSpec(pair_as=asked), model)
        assert open_store(out).sides == sides


@pytest.mark.parametrize(("stored", "asked"), [("one", "two"), ("two", "one")])
def test_the_other_form_is_other_work(
    pairs: Source, encoded: Encoding, content: Callable[[Path], dict[str, bytes]], tmp_path: Path, stored: str,
    asked: str,
) -> None:  # fmt: skip
    encoded(pairs, tmp_path / "s", pair_as=stored)
    before = content(tmp_path / "s")
    with pytest.raises(IdentityError, match="these fields differ") as caught:
        encoded(pairs, tmp_path / "s", pair_as=asked)
    assert [line.split() for line in caught.value.what.splitlines()[2:]] == [["pair_as", stored, asked]]
    assert content(tmp_path / "s") == before
    assert encoded(pairs, tmp_path / "s", pair_as=asked, overwrite=True).outcome == "encoded"


def test_pairs_that_are_none_are_refused(source: Source, encoded: Encoding, tmp_path: Path) -> None:
    for asked in ("one", "two"):
        with pytest.raises(UsageError, match=f"--pair-as {asked} needs pairs of texts") as caught:
            encoded(source, tmp_path / "s", pair_as=asked)
        assert caught.value.received == "the column 'tokens' alone"
        assert "--pair" in str(caught.value.remedy)
    with pytest.raises(UsageError, match="unknown pair-as 'three'") as caught:
        EncodeSpec(pair_as="three")
    assert caught.value.expected == "one of one, two"
    assert not (tmp_path / "s").exists()


def test_words_beside_a_text_are_no_pair(encoder: Encoder, tmp_path: Path) -> None:
    mixed = Source("mixed", {"train": pa.table({"tokens": [["a", "b"]], "other": ["c"], "label": [0]})})
    with pytest.raises(UsageError, match="both sides of a pair must be columns of texts"):
        encode(mixed, Columns(tokens="tokens", pair="other"), tmp_path / "s", EncodeSpec(), encoder)
    assert not (tmp_path / "s").exists()
