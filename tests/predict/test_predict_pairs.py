"""Live predictions about pairs that were stored as two sequences, beside those over the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import fusionkit
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.encode import encode
from fusionkit.encoder import Encoder
from fusionkit.errors import UsageError
from fusionkit.fit.train.decisions import predict
from fusionkit.heads import reads_sequences
from fusionkit.io.files import read_json
from fusionkit.predict import Label, Number, Predictor
from fusionkit.sources import Columns, Source
from fusionkit.specs import EncodeSpec
from fusionkit.store import Store, open_store

FitRun = Callable[..., Path]
# rows, pool, fusion
CASES = [
    ("tokens", "cls", "linear"), ("tokens", "cls", "extra-layers:1"), ("tokens", "mean", "attention"),
    ("tokens", "max", "concat"), ("cls", None, "linear"), ("mean", None, "layer:1"),
]  # fmt: skip


@pytest.fixture(scope="module")
def pairs() -> Source:
    """Pairs of texts of 1 to 9 words, some too long, some that come again and some beside themselves."""
    rng = np.random.default_rng(0)
    texts = [
        " ".join("".join(rng.choice(list("abcdefgh"), rng.integers(1, 6))) for _ in range(rng.integers(1, 10)))
        for _ in range(60)
    ]

    def examples(first: list[str]) -> pa.Table:
        second = [*first[:5], *rng.choice(first, len(first) - 5)]
        share = [len(set(one) & set(other)) / 8 for one, other in zip(first, second, strict=True)]
        return pa.table({"text": first, "pair": second, "label": [text[0] for text in first], "share": share})

    return Source("pairs", {"train": examples(texts), "validation": examples(texts[:30])})


@pytest.fixture(scope="module")
def pair_store(pairs: Source, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Store]:
    """``pair_store("tokens", "float16")``: the pairs under one kind of rows, as two unless told otherwise."""
    made: dict[tuple[str, ...], Store] = {}

    def get(rows: str, dtype: str = "float32", pair_as: str = "two") -> Store:
        key = rows, dtype, pair_as
        if key not in made:
            out = tmp_path_factory.mktemp("stores") / "store"
            spec = EncodeSpec(rows=rows, dtype=dtype, max_length=24, pair_as=pair_as)
            encode(pairs, Columns(text="text", pair="pair", labels=("label", "share")), out, spec, encoder)
            made[key] = open_store(out)
        return made[key]

    return get


def stored_scores(store: Store, predictor: Predictor) -> tuple[list[Any], torch.Tensor]:
    """What the run's own model decides over the store's validation split, and its scores."""
    [run] = predictor.runs.values()
    spec = run.spec
    data = load_task(
        store, *choose_task(store, spec.task, spec.label), spec.pool, run.sees_examples, reads_sequences(spec.head)
    )
    places = tuple(store.layers.index(layer) for layer in run.layers)
    batch = data.validation.batch(np.arange(30), places)
    with torch.inference_mode():
        scores = run.model(batch.states, batch.offsets, batch.read)
    return predict(run.model, data, data.validation, places), scores


@pytest.mark.product
@pytest.mark.parametrize(("rows", "pool", "fusion"), CASES)
@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 1e-5), ("float16", 1e-2)])
def test_a_live_answer_about_a_pair_is_the_stored_one(
    pair_store: Callable[..., Store], fit_run: FitRun, rows: str, pool: str | None, fusion: str, dtype: str,
    rounding: float,
) -> None:  # fmt: skip
    store = pair_store(rows, dtype)
    run = fit_run(store, label="label", pool=pool, fusions=[fusion])
    predictor = fusionkit.load(run, device="cpu")
    assert predictor.takes == "pairs"
    with pytest.raises(UsageError, match="reads texts") as caught:
        fusionkit.load(run, device="cpu", takes="texts")
    assert caught.value.expected == "one of pairs"
    with pytest.raises(UsageError, match="each side of a pair is a text") as caught:
        predictor.predict(["a", "b"], "xy")
    assert caught.value.received == "one text for all pairs"
    with pytest.raises(UsageError, match="1 "):
        predictor.predict(["a", "b"], ["x", "\ud800"])
    frame = store["validation"].examples
    found = predictor.predict(frame["text"].tolist(), frame["pair"].tolist())
    decided, scores = stored_scores(store, predictor)
    answers = [prediction["label"] for prediction in found]
    assert all(isinstance(answer, Label) for answer in answers)
    likely = [list((answer.probabilities or {}).values()) for answer in answers if isinstance(answer, Label)]
    np.testing.assert_allclose(likely, scores.softmax(-1).numpy(), atol=rounding)
    same = sum(isinstance(a, Label) and a.label == gold for a, gold in zip(answers, decided, strict=True))
    assert same >= (30 if dtype == "float32" else 29)
    lengths = [
        [len(predictor.encoder.tokenizer(text)["input_ids"]) for text in frame[side]] for side in ("text", "pair")
    ]
    assert [prediction.cut for prediction in found] == [max(both) > 24 for both in zip(*lengths, strict=True)]
    assert 0 < sum(prediction.cut for prediction in found) < 30


def test_a_number_for_a_pair_is_the_stored_one(pair_store: Callable[..., Store], fit_run: FitRun) -> None:
    store = pair_store("mean")
    predictor = fusionkit.load(fit_run(store, task="regression", label="share", fusions=["linear"]), device="cpu")
    frame = store["validation"].examples
    found = [each["share"] for each in predictor.predict(frame["text"].tolist(), frame["pair"].tolist())]
    decided, _ = stored_scores(store, predictor)
    np.testing.assert_allclose([each.value for each in found if isinstance(each, Number)], decided, atol=1e-4)
    assert len(set(decided)) > 20


def test_the_second_text_stands_on_its_own_side(pair_store: Callable[..., Store], fit_run: FitRun) -> None:
    """The head reads ``[u; v; …]``, which is another thing than ``[v; u; …]``."""
    run = fit_run(pair_store("mean"), task="regression", label="share", fusions=["linear"])
    predictor = fusionkit.load(run, device="cpu")
    there, back = (predictor.predict([one], [other])[0]["share"] for one, other in (("ab", "cd ef"), ("cd ef", "ab")))
    assert isinstance(there, Number)
    assert isinstance(back, Number)
    assert abs(there.value - back.value) > 1e-4


@pytest.mark.parametrize("budget", [8, 64, 8192])
def test_answers_do_not_depend_on_what_shares_a_batch(
    pair_store: Callable[..., Store], fit_run: FitRun, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    """Also where the two texts of one example are in batches of their own."""
    store = pair_store("tokens")
    predictor = fusionkit.load(fit_run(store, label="label", pool="cls", fusions=["extra-layers:1"]), device="cpu")
    frame = store["validation"].examples
    texts, seconds = frame["text"].tolist(), frame["pair"].tolist()
    single = [predictor.predict([one], [other])[0]["label"] for one, other in zip(texts, seconds, strict=True)]
    monkeypatch.setattr("fusionkit.predict.LARGEST_BATCH", budget)
    for alone, together in zip(single, predictor.predict(texts, seconds), strict=True):
        both = [list((each.probabilities or {}).values()) for each in (alone, together["label"])]  # type: ignore[union-attr]
        np.testing.assert_allclose(both[0], both[1], atol=1e-5)


def test_a_text_that_comes_again_is_encoded_once(
    pair_store: Callable[..., Store], fit_run: FitRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = fusionkit.load(fit_run(pair_store("mean"), label="label", fusions=["linear"]), device="cpu")
    seen: list[int] = []
    forward = Encoder.forward

    def counted(self: Encoder, *given: Any) -> Any:
        seen.append(len(given[0]))
        return forward(self, *given)

    monkeypatch.setattr(Encoder, "forward", counted)
    others = [letter * 3 for letter in "abcdefghij"]
    found = predictor.predict(["a query"] * 11, [*others, "a query"])
    assert seen == [11]
    assert len(found) == 11


def test_runs_over_one_and_over_two_sequences_share_no_pass(pair_store: Callable[..., Store], fit_run: FitRun) -> None:
    runs = [fit_run(pair_store("mean", pair_as=form), label="label", fusions=["last"]) for form in ("one", "two")]
    with pytest.raises(UsageError, match="cannot share one pass") as caught:
        fusionkit.load(*runs, device="cpu")
    assert str(caught.value.expected).endswith("input pairs as one")
    assert str(caught.value.received).endswith("input pairs as two")


def test_a_pair_needs_both_texts(pair_store: Callable[..., Store], fit_run: FitRun) -> None:
    predictor = fusionkit.load(fit_run(pair_store("mean"), label="label", fusions=["last"]), device="cpu")
    with pytest.raises(UsageError, match="trained over other input") as caught:
        predictor.predict(["a text"])
    assert caught.value.expected == "two texts an example"
    with pytest.raises(UsageError, match="the numbers of texts and of second texts differ"):
        predictor.predict(["a text"], ["one", "two"])
    with pytest.raises(UsageError, match="example 1 is neither a text nor a list of words") as caught:
        predictor.predict(["a text", None])  # type: ignore[list-item]
    assert caught.value.received == "None"
    for pair in ([["a", "text"]], ["one"]), (["a text"], [["one", "two"]]):
        with pytest.raises(UsageError, match="each side of a pair is a text"):
            predictor.predict(*pair)


@pytest.mark.parametrize("head", ["esim", pytest.param("esim-regressor", marks=pytest.mark.soak("products"))])
def test_a_head_that_compares_two_sequences_answers_live_and_is_evaluated_as_over_the_store(
    pair_store: Callable[..., Store], fit_run: FitRun, tmp_path: Path, head: str
) -> None:
    task, label = ("pair-classification", "label") if head == "esim" else ("regression", "share")
    store = pair_store("tokens")
    run = fit_run(store, task=task, label=label, head=head, fusions=["linear"])
    predictor = fusionkit.load(run, device="cpu")
    frame = store["validation"].examples
    decided, scores = stored_scores(store, predictor)
    found = [each[label] for each in predictor.predict(frame["text"].tolist(), frame["pair"].tolist())]
    if head == "esim":
        likely = [list((answer.probabilities or {}).values()) for answer in found if isinstance(answer, Label)]
        np.testing.assert_allclose(likely, scores.softmax(-1).numpy(), atol=1e-5)
    else:
        np.testing.assert_allclose([one.value for one in found if isinstance(one, Number)], decided, atol=1e-4)
    place = tmp_path / "validation.jsonl"
    rows = frame[["text", "pair", label]].to_dict(orient="records")
    place.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    [stored], [live] = (fusionkit.evaluate(run, data=data, device="cpu") for data in (store.path, place))
    recorded = read_json(stored.run.folder / "run.json")["scores"]["validation"]
    assert stored.scores == pytest.approx(recorded, abs=1e-6)
    assert live.scores == pytest.approx(recorded, abs=1e-4)
