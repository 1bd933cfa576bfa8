"""Perplexity of fused states: the model's own for its last layer, learned with others, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from safetensors.torch import load_file

import fusionkit
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import DataError, UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.train import decisions
from fusionkit.fit.train import loop as training
from fusionkit.fit.train.decisions import predict
from fusionkit.fit.train.loop import train_run
from fusionkit.machine.devices import home_of
from fusionkit.metrics import is_better
from fusionkit.sources import Source
from fusionkit.specs import RunSpec
from fusionkit.statistics.answer_bytes import from_bytes, to_bytes
from fusionkit.statistics.kept_answers import RunAnswers, answers_of
from fusionkit.store import Store, open_store
from fusionkit.tasks import TASKS

hf: Any = transformers
GetStore = Callable[[str], Store]
D, E, V = 16, 16, 57  # BERT's widths and vocabulary
HEAD = D * E + E + 2 * E + V * E + V


def spec_of(**fields: Any) -> RunSpec:
    given = {"store": "s", "task": "mlm", "label": "mlm_labels", "fusion": "last", "head": "lm-head", "epochs": 2}
    return RunSpec(**{**given, **fields})


def data_of(store: Store) -> TaskData:
    return load_task(store, *choose_task(store, "mlm", None), None)


def nats_of(found: list[list[tuple[float, int]]]) -> list[float]:
    """The cross-entropy of each masked sub-token, of all texts together."""
    return [nats for text in found for nats, _ in text]


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_last_layer_under_the_frozen_head_has_the_model_s_own_loss(
    kind: str, store: GetStore, sequences: Any, checkpoint: Any, tmp_path: Path, watch: Any
) -> None:
    """Each masked sub-token's cross-entropy, and the perplexity of all: AutoModelForMaskedLM on the same ids."""
    made, model = store(kind), hf.AutoModelForMaskedLM.from_pretrained(checkpoint(kind)).eval()
    (record,) = fit(made, expand(made, fusions=["last"]), RunsFolder(tmp_path / "runs"), watch)
    assert watch.left == 0
    for split in ("validation", "test"):
        each: list[float] = []
        hits, total = 0, 0.0
        for ids, labels in sequences(made, split):
            at = torch.from_numpy(labels)
            if not bool((at != -100).any()):
                continue
            with torch.no_grad():
                output = model(torch.from_numpy(ids)[None], labels=at[None])
            log_p = output.logits[0].log_softmax(-1)
            chosen = (at != -100).nonzero()[:, 0]
            each += (-log_p[chosen, at[chosen]]).tolist()
            hits += int((log_p[chosen].argmax(1) == at[chosen]).sum())
            total += float(output.loss) * len(chosen)
        data = data_of(made)
        part = data.validation if split == "validation" else data.test
        assert part is not None
        found = predict(build_model(spec_of(), 1, D, 0, 1, data.lm_head), data, part, (3,))
        np.testing.assert_allclose(nats_of(found), each, rtol=1e-4, atol=1e-4)
        scores = record["scores"][split]
        assert scores["perplexity"] == pytest.approx(math.exp(total / len(each)), rel=1e-4)
        assert scores["cross_entropy"] == pytest.approx(total / len(each), rel=1e-5)
        assert scores["accuracy"] == pytest.approx(hits / len(each))
    assert record["metric"] == "perplexity"
    assert record["score"] == record["scores"]["test"]["perplexity"]


def test_what_has_nothing_to_learn_is_scored_and_kept_without_weights(
    store: GetStore, tmp_path: Path, watch: Any
) -> None:
    made, runs = store("bert"), RunsFolder(tmp_path / "runs")
    (record,) = fit(made, expand(made, fusions=["last"], epochs=(7,)), runs, watch)
    assert (record["fusion_parameters"], record["head_parameters"]) == (0, 0)
    assert (record["best_epoch"], record["curve"]) == (0, [])
    folder = tmp_path / "runs" / expand(made, fusions=["last"], epochs=(7,))[0].digest
    assert sorted(file.name for file in folder.iterdir()) == ["answers.safetensors", "run.json"]


def test_a_model_without_weights_is_found_where_its_buffers_are(store: GetStore) -> None:
    """On a GPU it cannot score states that are on the CPU."""
    model = build_model(spec_of(), 1, D, 0, 1, data_of(store("bert")).lm_head).to("meta")
    assert [*model.parameters()] == []
    assert home_of(model) == torch.device("meta")


@pytest.mark.parametrize(
    ("fusion", "layers", "parameters"),
    [("linear", (0, 1, 2, 3), 4 + 1), ("attention", (0, 1, 2, 3), D), ("concat-affine", (1, 2, 3), 3 * (D * D + D))],
)
@pytest.mark.parametrize("head", ["lm-head", "lm-head-trained"])
def test_only_what_is_trained_is_counted_and_kept(
    head: str, fusion: str, layers: tuple[int, ...], parameters: int, store: GetStore
) -> None:
    data = data_of(store("bert"))
    assert data.lm_head is not None
    before = {name: weight.clone() for name, weight in data.lm_head.weights.items()}
    outcome = train_run(spec_of(fusion=fusion, head=head, epochs=1), data, layers, D, lambda: None)
    assert outcome.fusion_parameters == parameters
    assert outcome.head_parameters == (HEAD if head == "lm-head-trained" else 0)
    kept = [name for name in outcome.weights if name.startswith("head.")]
    assert len(kept) == (6 if head == "lm-head-trained" else 0)
    # Runs share the head that they begin with.
    assert all(torch.equal(weight, before[name]) for name, weight in data.lm_head.weights.items())


def test_training_lowers_the_perplexity_and_the_lowest_epoch_is_kept(store: GetStore) -> None:
    data = data_of(store("bert"))
    frozen = train_run(spec_of(), data, (3,), D, lambda: None)
    for head in ("lm-head", "lm-head-trained"):
        outcome = train_run(
            spec_of(fusion="concat-affine", head=head, epochs=6, lr=5e-3), data, (1, 2, 3), D, lambda: None
        )
        found = [entry["validation_score"] for entry in outcome.curve]
        assert outcome.validation_score == min(found) < frozen.validation_score
        assert outcome.best_epoch == 1 + found.index(min(found))
        assert max(found) > min(found)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Validation perplexities as told here, whatever the model does."""
    wanted: list[float] = []
    real = decisions.score

    def score(model: Any, data: Any, split: Any, layers: Any, choose: bool = False) -> dict[str, float]:
        if split is data.validation:
            return {"perplexity": wanted.pop(0)}
        return real(model, data, split, layers, choose)

    monkeypatch.setattr(training, "score", score)
    return wanted


@pytest.mark.parametrize(
    ("scores", "patience", "epochs", "best"),
    [([9.0, 7.0, 8.0, 7.5], None, 4, 2), ([9.0, 7.0, 8.0, 7.5, 6.0], 2, 4, 2), ([3.0, 4.0, 5.0], 1, 2, 1)],
)
def test_less_is_better_for_the_best_epoch_and_for_patience(
    scores: list[float], patience: int | None, epochs: int, best: int, store: GetStore, told: list[float]
) -> None:
    told += scores
    outcome = train_run(
        spec_of(fusion="linear", epochs=len(scores), patience=patience), data_of(store("bert")), (0, 1, 2, 3), D,
        lambda: None,
    )  # fmt: skip
    assert (len(outcome.curve), outcome.best_epoch, outcome.validation_score) == (epochs, best, scores[best - 1])


def test_which_scores_are_better() -> None:
    assert is_better("perplexity", 3.0, 4.0)
    assert not is_better("perplexity", 4.0, 4.0)
    assert is_better("f1", 0.4, 0.3)
    assert not is_better("accuracy", 0.3, 0.4)


def test_perplexity_is_the_exponential_of_the_mean() -> None:
    kept = answers_of(TASKS["mlm"], [[3], [4, 5, 6]], [[(1.0, 3)], [(2.0, 0), (0.5, 5), (4.5, 1)]], [])
    assert kept.scores() == {"perplexity": pytest.approx(math.exp(2.0)), "cross_entropy": 2.0, "accuracy": 0.5}
    assert from_bytes(to_bytes({"s": RunAnswers({"": kept})}))["s"].scores() == kept.scores()
    without = replace(kept, arrays={name: kept.arrays[name] for name in ("nats", "hits")})
    with pytest.raises(ValueError, match="no kept answers: 'the number of masked sub-tokens of each text'"):
        from_bytes(to_bytes({"s": RunAnswers({"": without})}))
    # Two texts: a test over them counts what each of them has.
    assert len(kept) == 2
    for metric, counts in {"perplexity": [[1, 1], [7, 3]], "accuracy": [[1, 1], [1, 3]], "f1": None}.items():
        found = kept.counts(metric, ())
        assert (None if found is None else found.tolist()) == counts
    for nothing in (math.inf, math.nan, 1e9):
        scores = answers_of(TASKS["mlm"], [[3]], [[(nothing, 3)]], []).scores()
        assert math.isfinite(scores["perplexity"])
        assert scores["perplexity"] > 1e300
        json.dumps(scores, allow_nan=False)


def test_few_rows_at_once_give_the_same_scores(store: GetStore, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(store("bert"))
    model = build_model(spec_of(), 1, D, 0, 1, data.lm_head)
    whole = predict(model, data, data.validation, (3,))
    monkeypatch.setattr("fusionkit.fit.train.decisions.SCORE_BYTES", 4 * V * 3)
    pieces = predict(model, data, data.validation, (3,))
    assert [[best for _, best in text] for text in pieces] == [[best for _, best in text] for text in whole]
    np.testing.assert_allclose(nats_of(pieces), nats_of(whole), rtol=1e-5)


def test_each_row_of_a_text_has_its_own_id_in_any_draw(store: GetStore) -> None:
    made = store("bert")
    data = load_task(made, *choose_task(made, None, None), None)
    assert (data.task.name, data.label, data.labels) == ("mlm", "mlm_labels", [])
    split, masks = made["train"], np.diff(made["train"].row_offsets)
    texts = np.flatnonzero(masks)
    assert len(data.train) == len(texts) < len(split)
    assert data.train.ids == [f"train-{text}" for text in texts]
    rows = np.concatenate([np.arange(*split.row_offsets[text : text + 2]) for text in texts[[5, 0, 11]]])
    batch = data.train.batch(np.array([5, 0, 11]), (2, 3))
    assert batch.targets.tolist() == split.masked_ids[rows].tolist()
    assert torch.equal(batch.states, torch.as_tensor(split.hidden_states[:])[rows][:, [2, 3]])
    assert batch.offsets.tolist() == [0, *masks[texts[[5, 0, 11]]].cumsum()]
    outcome = train_run(spec_of(fusion="linear", shots=9, epochs=1), data, (0, 1, 2, 3), D, lambda: None)
    assert outcome.draw is not None
    assert len(set(outcome.draw)) == 9


def test_without_validation_some_texts_are_set_aside(source: Source, encoded: Any, tmp_path: Path) -> None:
    encoded(Source("s", {"train": source.splits["train"]}), tmp_path / "s")
    made = open_store(tmp_path / "s")
    data = data_of(made)
    whole = int((np.diff(made["train"].row_offsets) > 0).sum())
    assert len(data.validation) == round(whole / 10)
    assert len(data.train) + len(data.validation) == whole
    assert any("set aside" in note for note in data.notes)
    assert data.test is None


def test_too_little_text_is_refused(encoded: Any, tmp_path: Path) -> None:
    encoded(Source("s", {"train": pa.table({"text": ["!", "?"]})}), tmp_path / "s")
    with pytest.raises(DataError, match="too few sub-tokens"):
        data_of(open_store(tmp_path / "s"))
    both = {"train": pa.table({"text": ["a"]}), "validation": pa.table({"text": ["!"]})}
    encoded(Source("s", both), tmp_path / "u", mask_share=1.0)
    with pytest.raises(DataError, match="too few sub-tokens"):  # one row cannot be learned from and judged on
        data_of(open_store(tmp_path / "u"))
    encoded(Source("s", {"test": pa.table({"text": ["abc"]})}), tmp_path / "t")
    with pytest.raises(UsageError, match="no train split"):
        data_of(open_store(tmp_path / "t"))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"fusions": ["concat"]}, "gives states 256 wide; the encoder's LM head reads states of width 16"),
        ({"fusions": ["extra-layers:1"]}, "looks at all rows of an example"),
        ({"task": "tagging"}, "do not suit the task tagging"),
        ({"label": "text"}, "masked sub-tokens are learned, no column"),
        ({"pool": "mean"}, "--pool mean has nothing to pool"),
        ({"head": "classifier"}, "unknown head for mlm 'classifier'"),
        ({"class_weights": "balanced"}, "cannot use --class-weights"),
    ],
)
def test_wrong_wishes_over_masked_rows_are_refused(choices: dict[str, Any], message: str, store: GetStore) -> None:
    with pytest.raises(UsageError, match=message):
        expand(store("bert"), **{"fusions": ["last"], **choices})


def test_other_rows_carry_no_masked_language_model(source: Source, encoded: Any, tmp_path: Path) -> None:
    encoded(source, tmp_path / "s", task=None, rows="mean")
    with pytest.raises(UsageError, match="rows of mean do not suit the task mlm") as caught:
        expand(open_store(tmp_path / "s"), fusions=["last"], task="mlm")
    assert caught.value.remedy == "encode with --task mlm"


def test_label_smoothing_changes_the_training_not_the_score(store: GetStore) -> None:
    data = data_of(store("bert"))
    plain, smooth = (
        train_run(spec_of(fusion="linear", epochs=1, lr=1e-9, label_smoothing=s), data, (0, 1, 2, 3), D, lambda: None)
        for s in (0.0, 0.5)
    )
    assert smooth.curve[0]["loss"] != pytest.approx(plain.curve[0]["loss"], rel=1e-3)
    assert smooth.validation_score == pytest.approx(plain.validation_score, rel=1e-5)


def test_a_run_of_masks_is_not_for_predicting(store: GetStore, tmp_path: Path, watch: Any) -> None:
    made = store("bert")
    specs = expand(made, fusions=["last", "linear"], head="lm-head-trained", epochs=(1,))
    fit(made, specs, RunsFolder(tmp_path / "runs"), watch)
    weights = load_file(tmp_path / "runs" / specs[0].digest / "weights.safetensors")
    assert weights["head.score.1.decoder_weight"].shape == (V, E)
    with pytest.raises(UsageError, match="scores masked sub-tokens: it has nothing to predict"):
        fusionkit.load(tmp_path / "runs")
