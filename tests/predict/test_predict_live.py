"""Live predictions beside those over a store: the same rows, the same answers, probabilities within rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, trainers

import fusionkit
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.encode import encode
from fusionkit.encoder import Encoder, Tokenized, load_encoder
from fusionkit.errors import UsageError
from fusionkit.fit.train.decisions import predict
from fusionkit.heads import reads_sequences
from fusionkit.predict import Label, Number, Predictor, Tags
from fusionkit.ragged import offsets_of
from fusionkit.sources import Columns, Source
from fusionkit.specs import EncodeSpec
from fusionkit.store import Store, open_store

hf: Any = transformers
MakeStore = Callable[..., Store]
FitRun = Callable[..., Path]
# rows, task, head, pool, fusion
CASES = [
    ("tokens", "tagging", "tagger", None, "linear"),
    ("tokens", "tagging", "crf", None, "attention"),
    ("tokens", "tagging", "linear-tagger", None, "extra-layers:1"),
    ("words", "tagging", "tagger", None, "concat"),
    ("words-mean", "tagging", "crf", None, "last"),
    ("words", "tagging", "tagger", None, "flat:8"),
    ("tokens", "tagging", "bilstm-crf", None, "linear"),
    ("tokens", "classification", "bcn", None, "linear"),
    ("words", "classification", "bcn", None, "extra-layers:1"),
    ("tokens", "classification", "classifier", "cls", "linear"),
    ("tokens", "classification", "classifier", "cls", "extra-layers:1"),
    ("tokens", "classification", "classifier", "last", "attention"),
    ("tokens", "classification", "classifier", "mean", "dwatt"),
    ("tokens", "classification", "classifier", "max", "ladder:8"),
    ("words", "classification", "classifier", "mean", "attention"),
    ("cls", "classification", "classifier", None, "linear"),
    ("mean", "classification", "classifier", None, "layer:1"),
]


def stored_answers(store: Store, predictor: Predictor) -> tuple[list[Any], list[Any]]:
    """What the run's own model says over the store's validation split: decisions, and softmax scores by example."""
    [run] = predictor.runs.values()
    spec = run.spec
    unpooled = reads_sequences(spec.head)
    data = load_task(store, *choose_task(store, spec.task, spec.label), spec.pool, run.sees_examples, unpooled)
    split, places = data.validation, tuple(store.layers.index(layer) for layer in run.layers)
    scores = []
    with torch.inference_mode():
        for example in range(len(split)):
            batch = split.batch(np.array([example]), places)
            scores.append(run.model(batch.states, batch.offsets, batch.read).softmax(-1).numpy())
    return predict(run.model, data, split, places), scores


@pytest.mark.product
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 1e-5), ("float16", 1e-2)])
def test_a_live_answer_is_the_stored_one(
    make_store: MakeStore, fit_run: FitRun, case: tuple[Any, ...], dtype: str, rounding: float
) -> None:
    rows, task, head, pool, fusion = case
    store = make_store(rows, dtype)
    predictor = fusionkit.load(fit_run(store, task=task, head=head, pool=pool, fusions=[fusion]), device="cpu")
    texts = [list(words) for words in store["validation"].examples["tokens"]]
    found = predictor.predict(texts)
    decided, scores = stored_answers(store, predictor)
    [name] = predictor.runs
    compared = 0
    same = 0
    for prediction, gold, likely in zip(found, decided, scores, strict=True):
        answer = prediction[name]
        if isinstance(answer, Label):
            assert answer.probabilities is not None
            assert list(answer.probabilities) == predictor.runs[name].labels
            np.testing.assert_allclose(list(answer.probabilities.values()), likely[0], atol=rounding)
            same += answer.label == gold
        else:
            assert isinstance(answer, Tags)
            if answer.probabilities is not None:
                chances = [chance for chance in answer.probabilities if chance is not None]
                np.testing.assert_allclose(chances, likely.max(1), atol=rounding)
            same += answer.tags == gold
        compared += 1
    assert compared == 30
    # Over float16 states two answers that are as likely as each other may change places.
    assert same == compared if dtype == "float32" else same >= compared - 1


def test_a_regression_answers_with_the_number_of_its_run(make_store: MakeStore, fit_run: FitRun) -> None:
    store = make_store("mean")
    predictor = fusionkit.load(fit_run(store, task="regression", label="share", fusions=["linear"]), device="cpu")
    found = predictor.predict([list(words) for words in store["validation"].examples["tokens"]])
    decided, _ = stored_answers(store, predictor)
    [name] = predictor.runs
    values = [prediction[name] for prediction in found]
    assert all(isinstance(value, Number) for value in values)
    np.testing.assert_allclose([value.value for value in values if isinstance(value, Number)], decided, atol=1e-4)
    assert found[0].to_dict()["heads"][name] == {"value": pytest.approx(decided[0], abs=1e-4)}


def test_words_that_have_no_row_get_the_default_tag_and_no_probability(make_store: MakeStore, fit_run: FitRun) -> None:
    store = make_store("words")
    predictor = fusionkit.load(fit_run(store, task="tagging", fusions=["linear"]), device="cpu")
    long = ["abcde"] * 6
    first, second = predictor.predict([["\u200b", "abc"], long])
    assert (first.cut, second.cut) == (False, True)
    answer, cut = first["tags"], second["tags"]
    assert isinstance(answer, Tags)
    assert isinstance(cut, Tags)
    assert answer.probabilities is not None
    assert cut.probabilities is not None
    assert (answer.tags[0], answer.probabilities[0]) == ("O", None)
    assert answer.probabilities[1] is not None
    # 24 sub-tokens less the two special ones: four whole words of five letters and two letters of the fifth.
    assert [chance is None for chance in cut.probabilities] == [False] * 5 + [True]
    assert cut.tags[5] == "O"


def test_a_crf_gives_its_path_and_no_probabilities(make_store: MakeStore, fit_run: FitRun) -> None:
    run = fit_run(make_store("words"), task="tagging", head="crf", fusions=["linear"])
    answer = fusionkit.load(run, device="cpu").predict([["abc", "de"]])[0]["tags"]
    assert isinstance(answer, Tags)
    assert len(answer.tags) == 2
    assert answer.probabilities is None


def test_heads_over_every_kind_of_rows_share_one_pass(
    make_store: MakeStore, fit_run: FitRun, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [
        fit_run(make_store("tokens"), task="classification", pool="mean", fusions=["linear", "layer:1"]),
        fit_run(make_store("words"), task="tagging", fusions=["attention"]),
        fit_run(make_store("mean"), task="classification", fusions=["concat"]),
    ]
    texts = source.splits["validation"].head()["tokens"].to_pylist()
    together = fusionkit.load(*alone, device="cpu")
    assert len(together.runs) == 4
    assert [name.split("/")[0] for name in together.runs] == ["label", "label", "tags", "label"]
    separate = [fusionkit.load(run, device="cpu") for run in alone]
    calls: list[int] = []
    forward = Encoder.forward

    def counted(self: Encoder, *given: Any) -> Any:
        calls.append(len(given[0]))
        return forward(self, *given)

    monkeypatch.setattr(Encoder, "forward", counted)
    found = together.predict(texts)
    assert sum(calls) == len(texts)  # each example passes the encoder once
    for predictor in separate:
        for run in predictor.runs.values():
            [name] = [n for n, r in together.runs.items() if r.folder == run.folder]
            [own] = [n for n, r in predictor.runs.items() if r.folder == run.folder]
            assert [p[name] for p in found] == [p[own] for p in predictor.predict(texts)]


def test_texts_and_pairs_come_as_they_were_trained(make_store: MakeStore, fit_run: FitRun) -> None:
    for roles in ({"text": "text"}, {"text": "text", "pair": "pair"}):
        store = make_store("mean", **roles)
        predictor = fusionkit.load(fit_run(store, label="label", fusions=["linear"]), device="cpu")
        frame = store["validation"].examples
        found = predictor.predict(*(list(frame[column]) for column in roles.values()))
        assert predictor.predict(*(frame[column] for column in roles.values())) == found
        assert predictor.predict(*(frame[column].to_numpy() for column in roles.values())) == found
        decided, scores = stored_answers(store, predictor)
        likely = [list(p["label"].probabilities.values()) for p in found]  # type: ignore[union-attr]
        np.testing.assert_allclose(likely, np.concatenate(scores), atol=1e-5)
        assert [p["label"].label for p in found] == decided  # type: ignore[union-attr]


def test_no_examples_give_no_answers(make_store: MakeStore, fit_run: FitRun) -> None:
    assert fusionkit.load(fit_run(make_store("words"), task="tagging", fusions=["last"])).predict([]) == []


def test_examples_are_answered_in_blocks_and_numbered_over_all_of_them(
    make_store: MakeStore, fit_run: FitRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store("tokens")
    run = fit_run(store, task="classification", pool="mean", fusions=["linear"])
    predictor, texts = fusionkit.load(run, device="cpu"), [list(row) for row in store["validation"].examples["tokens"]]

    def likely() -> list[list[float]]:
        return [list(p["label"].probabilities.values()) for p in predictor.predict(texts)]  # type: ignore[union-attr]

    wanted, sizes, tokenize = likely(), list[int](), Encoder.tokenize

    def bare(self: Encoder, texts: Any, pairs: Any, max_length: int) -> Tokenized:
        """As of a tokenizer that adds no special sub-tokens."""
        found = tokenize(self, texts, pairs, max_length)
        kept = found.word_index >= 0
        offsets = offsets_of(kept.astype(np.int64))[found.token_offsets]
        return Tokenized(found.token_ids[kept], found.word_index[kept], found.segments[kept], offsets, found.cut)

    def counted(self: Encoder, texts: Any, pairs: Any, max_length: int) -> Tokenized:
        sizes.append(len(texts))
        return tokenize(self, texts, pairs, max_length)

    monkeypatch.setattr("fusionkit.predict.BLOCK", 7)
    monkeypatch.setattr(Encoder, "tokenize", counted)
    np.testing.assert_allclose(likely(), wanted, atol=1e-5)
    assert sizes == [7, 7, 7, 7, 2]
    monkeypatch.setattr(Encoder, "tokenize", bare)
    texts[17] = ["\u200b"]
    with pytest.raises(UsageError, match="example 17 has no sub-token"):
        predictor.predict(texts)
    with pytest.raises(UsageError, match="example 1017 has no sub-token"):
        predictor.predict(texts, start=1000)


def test_heads_over_an_untrained_encoder_find_it_again_and_lie_in_a_store_of_their_own(
    make_store: MakeStore, fit_run: FitRun, encoder: Encoder
) -> None:
    untrained = load_encoder(encoder.name, device="cpu", words=True, untrained=3)
    store, trained = make_store("words", encoder=untrained), make_store("words")
    assert store.manifest["identity"]["encoder"]["untrained"] == 3
    assert store.digest != trained.digest
    runs = fit_run(store, task="tagging", fusions=["linear"])
    predictor = fusionkit.load(runs, device="cpu")
    wanted, _ = stored_answers(store, predictor)
    found = predictor.predict([list(words) for words in store["validation"].examples["tokens"]])
    assert [prediction["tags"].tags for prediction in found] == wanted  # type: ignore[union-attr]
    fit_run(trained, runs, task="tagging", fusions=["linear"])
    frame = fusionkit.results(runs)
    assert set(frame["encoder"]) == {encoder.name, f"{encoder.name} (untrained 3)"}


def test_words_for_a_head_over_texts_are_read_as_a_text(source: Source, fit_run: FitRun, tmp_path: Path) -> None:
    """A byte-level tokenizer that was loaded for texts would drop the spaces between words."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(["ab cd"], trainers.BpeTrainer(initial_alphabet=letters, show_progress=False))
    torch.manual_seed(0)
    sizes = {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
    hf.GPT2Model(hf.GPT2Config(vocab_size=raw.get_vocab_size(), **sizes)).save_pretrained(tmp_path / "gpt2")
    hf.GPT2TokenizerFast(tokenizer_object=raw).save_pretrained(tmp_path / "gpt2")
    columns, spec = Columns(text="text", labels=("label",)), EncodeSpec(rows="mean", dtype="float32", max_length=24)
    encode(source, columns, tmp_path / "s", spec, load_encoder(str(tmp_path / "gpt2"), device="cpu"))
    run = fit_run(open_store(tmp_path / "s"), fusions=["linear"])
    words = source.splits["validation"].head(5).column("tokens").to_pylist()
    [one] = fusionkit.load(run, device="cpu").runs
    told = fusionkit.load(run, device="cpu").predict([" ".join(each) for each in words])
    assert [each[one] for each in fusionkit.load(run, device="cpu", takes="words").predict(words)] == [
        each[one] for each in told
    ]
