"""The bundled MiniLM: its facts, and stored rows against a loop over ``transformers``, one sentence at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from fusionkit import specs
from fusionkit.bundled import minilm_folder
from fusionkit.encode import encode
from fusionkit.encoder import Encoder
from fusionkit.errors import EncoderError
from fusionkit.sources import Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import open_store

WORDS = [
    ["Flights", "to", "Zürich-Kloten", ",", "please", "!"],
    ["unbelievable"],
    ["The", "harbourmaster", "hadn't", "seen", "so", "many", "sailboats", "in", "thirty-odd", "years", "."],
    ["ok"],
]
FIRSTS = ["A man is playing the guitar.", "Stocks fell sharply on Tuesday", "Yes", "The cat sat."]
SECONDS = ["Someone plays an instrument", "Markets dropped.", "No, not at all, never", "It sat."]
# Rounding of the stored precision, relative, half a unit in the last place and a little.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 0.0}
Alone = Callable[..., tuple[NDArray[np.float32], list[int | None]]]


@pytest.fixture(scope="module")
def place() -> str:
    return str(minilm_folder())


def first_pieces(states: NDArray[np.float32], words: list[int | None]) -> NDArray[np.float32]:
    return states[:, [words.index(word) for word in sorted({w for w in words if w is not None})]]


def means_of_pieces(states: NDArray[np.float32], words: list[int | None]) -> NDArray[np.float32]:
    groups = [[i for i, w in enumerate(words) if w == word] for word in sorted({w for w in words if w is not None})]
    return np.stack([states[:, group].mean(axis=1) for group in groups], axis=1)


ROWS: dict[str, Callable[[NDArray[np.float32], list[int | None]], NDArray[np.float32]]] = {
    "tokens": lambda states, words: states,
    "words": first_pieces,
    "words-mean": means_of_pieces,
    "cls": lambda states, words: states[:, :1],
    "last": lambda states, words: states[:, -1:],
    "mean": lambda states, words: states.mean(axis=1, keepdims=True),
}


def stored(source: Source, out: Path, encoder: Encoder, **how: Any) -> NDArray[np.float32]:
    """All rows of the training split as float32 ``[rows, layers, hidden]``."""
    encode(source, guess_columns(source), out, EncodeSpec(**how), encoder)
    split = open_store(out)["train"]
    return split.take(np.arange(len(split))).hidden_states.float().numpy()


def assert_stored(found: NDArray[np.float32], expected: list[NDArray[np.float32]], dtype: str = "float16") -> None:
    together = np.concatenate(expected, axis=1).transpose(1, 0, 2)  # [layers, rows, hidden] → [rows, layers, hidden]
    assert found.shape == together.shape
    np.testing.assert_allclose(found, together, rtol=ROUNDING[dtype] + 1e-5, atol=1e-5)


def test_the_weights_are_the_published_ones() -> None:
    digest = hashlib.sha256((minilm_folder() / "model.safetensors").read_bytes()).hexdigest()
    assert digest == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusionkit.bundled.MINILM_SHA256", "0" * 64)
    with pytest.raises(EncoderError, match="are not all-MiniLM-L6-v2"):
        minilm_folder()


def test_minilm_has_six_layers_and_its_embeddings(minilm: Encoder) -> None:
    assert (minilm.layers, minilm.hidden, minilm.parameters) == (7, 384, 22_713_216)
    assert (minilm.max_length, minilm.sentence_rows) == (512, "mean")


@pytest.mark.parametrize("rows", ROWS)
def test_rows_of_each_kind_are_those_of_each_sentence_alone(
    minilm: Encoder, place: str, alone: Alone, tmp_path: Path, rows: str
) -> None:
    found = stored(Source("s", {"train": pa.table({"tokens": WORDS})}), tmp_path / "s", minilm, rows=rows)
    assert_stored(found, [ROWS[rows](*alone(place, words)) for words in WORDS])


def test_every_kind_of_rows_was_seen() -> None:
    assert tuple(ROWS) == specs.ROWS


@pytest.mark.parametrize(("layers", "picked"), [("-2:", [5, 6]), ("0,3,6", [0, 3, 6]), ("4", [4])])
def test_chosen_layers_are_those_and_no_other(
    minilm: Encoder, place: str, alone: Alone, tmp_path: Path, layers: str, picked: list[int]
) -> None:
    source = Source("s", {"train": pa.table({"sentence": FIRSTS})})
    found = stored(source, tmp_path / "s", minilm, rows="tokens", layers=layers)
    assert open_store(tmp_path / "s").layers == tuple(picked)
    assert_stored(found, [alone(place, text)[0][picked] for text in FIRSTS])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_precisions_round_as_they_should(
    minilm: Encoder, place: str, alone: Alone, tmp_path: Path, dtype: str
) -> None:
    source = Source("s", {"train": pa.table({"sentence": FIRSTS})})
    found = stored(source, tmp_path / "s", minilm, rows="mean", dtype=dtype)
    assert_stored(found, [ROWS["mean"](*alone(place, text)) for text in FIRSTS], dtype)


def test_a_pair_as_one_is_a_sequence_with_two_segments(
    minilm: Encoder, place: str, alone: Alone, tmp_path: Path
) -> None:
    source = Source("s", {"train": pa.table({"sentence1": FIRSTS, "sentence2": SECONDS})})
    found = stored(source, tmp_path / "s", minilm, rows="tokens", pair_as="one")
    pairs = zip(FIRSTS, SECONDS, strict=True)
    assert_stored(found, [alone(place, first, second)[0] for first, second in pairs])


def test_sentences_get_the_rows_that_the_encoder_was_trained_for(minilm: Encoder, tmp_path: Path) -> None:
    source = Source("s", {"train": pa.table({"sentence": FIRSTS, "label": [0, 1, 0, 1]})})
    stored(source, tmp_path / "s", minilm)
    assert open_store(tmp_path / "s").rows == "mean"
