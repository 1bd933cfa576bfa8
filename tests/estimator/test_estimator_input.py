"""What estimators take, what they leave behind, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fusionkit import FusionClassifier, FusionRegressor, FusionTagger, Ragged
from fusionkit.errors import UsageError


def test_what_is_learned_has_names_that_end_in_an_underscore(toy: Any) -> None:
    ragged, labels, _ = toy
    found: Any = FusionClassifier("linear", epochs=4, lr=1e-2).fit(ragged, labels)
    assert found.classes_.tolist() == ["down", "up"]
    assert (found.n_features_in_, found.n_layers_in_, found.layers_) == (6, 3, (0, 1, 2))
    assert found.layer_weights_.shape == (3,)
    assert found.layer_weights_.sum() == pytest.approx(1)
    np.testing.assert_allclose(found.layer_weights_, found.model_.fusion.weight.softmax(0).numpy(), rtol=1e-5)
    assert (found.n_iter_, len(found.loss_curve_), found.spec_.pool) == (4, 4, "mean")
    assert found.loss_curve_[-1] < found.loss_curve_[0]
    assert FusionClassifier("concat", epochs=1).fit(ragged, labels).layer_weights_ is None


@pytest.mark.parametrize(("pool", "row"), [("cls", 0), ("last", -1)])
def test_probabilities_are_the_softmax_of_the_models_scores(toy: Any, pool: str, row: int) -> None:
    ragged, labels, _ = toy
    found = FusionClassifier("layer:1", epochs=3, pool=pool).fit(ragged, labels)
    kept = [torch.from_numpy(ragged.row_mask[slice(*ragged.row_offsets[i : i + 2])]) for i in range(60)]
    read = torch.stack([ragged[i][kept[i]][row] for i in range(60)])  # [60, 3, 6]; the last row that has a state
    with torch.no_grad():
        scores = found.model_.head.score(read[:, 1]).double().numpy()
    expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    probabilities = found.predict_proba(ragged)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-4)
    assert found.predict(ragged).tolist() == found.classes_[expected.argmax(1)].tolist()


@pytest.mark.parametrize("classes", [np.array([3, 7]), np.array([False, True]), np.array(["a", "b"], dtype=object)])
def test_answers_are_of_the_labels_kind(toy: Any, classes: Any) -> None:
    ragged, labels, _ = toy
    y = classes[(labels == "up").astype(int)]
    found = FusionClassifier("layer:1", epochs=10, lr=1e-2, pool="cls").fit(ragged, y)
    assert found.classes_.tolist() == classes.tolist()
    assert found.predict(ragged).dtype == y.dtype
    assert (found.predict(ragged) == y).mean() > 0.9


def test_arrays_lists_and_frames_are_one_row_an_example(toy: Any) -> None:
    ragged, labels, _ = toy
    array = np.stack([ragged[i][0].numpy() for i in range(60)])  # [60, 3, 6]
    wanted = FusionClassifier(epochs=2).fit(array, labels).predict_proba(array)
    for given in (array.astype(np.float64), array.tolist()):
        np.testing.assert_array_equal(FusionClassifier(epochs=2).fit(given, labels).predict_proba(given), wanted)
    frame = pd.DataFrame(array[:, 0], columns=list("abcdef"))
    found = FusionClassifier(epochs=1).fit(frame, labels)
    assert (found.feature_names_in_.tolist(), found.n_features_in_, found.n_layers_in_) == (list("abcdef"), 6, 1)


def test_a_tagger_gives_a_tag_a_row_and_the_default_where_there_is_no_state(toy: Any) -> None:
    ragged, labels, tags = toy
    found = FusionTagger("layer:1", epochs=10, lr=1e-2).fit(ragged, tags)
    flat = [tag for row in tags for tag in row]
    assert found.default_ == max(set(flat), key=flat.count)
    answers = found.predict(ragged)
    assert [len(row) for row in answers] == [len(row) for row in tags]
    assert [tag for row in answers for tag in row][4] == found.default_
    same = np.array([tag for row in answers for tag in row]) == np.array(flat)
    assert 0.9 < found.score(ragged, tags) == pytest.approx(same.mean())
    spans = [["B-x" if tag == "up" else "O" for tag in row] for row in tags]
    assert FusionTagger(epochs=1).fit(ragged, pd.Series(spans)).default_ == "O"
    first = np.stack([ragged[i][0].numpy() for i in range(60)])  # one row an example, with its tag alone
    one = FusionTagger("layer:1", epochs=2).fit(first, labels)
    right = [tag == label for (tag,), label in zip(one.predict(first), labels, strict=True)]
    assert one.score(first, labels) == pytest.approx(np.mean(right))


def test_early_stopping_stops(toy: Any) -> None:
    ragged, labels, _ = toy
    found: Any = FusionClassifier("layer:1", pool="cls", epochs=50, lr=1e-2, patience=2, validation_fraction=0.2)
    found.fit(ragged, labels)
    assert found.n_iter_ == found.best_iter_ + 2 < 50
    assert found.validation_scores_[found.best_iter_ - 1] == max(found.validation_scores_)


def test_the_seed_decides(toy: Any) -> None:
    ragged, labels, _ = toy

    def fitted(seed: Any) -> list[float]:
        return list(FusionClassifier(epochs=2, dropout=0.3, random_state=seed).fit(ragged, labels).loss_curve_)

    assert fitted(0) == fitted(0) != fitted(1)
    assert fitted(np.random.RandomState(3)) == fitted(np.random.RandomState(3))
    assert fitted(None) != fitted(None)


def test_means_of_arrays_are_scored_whatever_their_size(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only states in chunks can be read a chunk at a time."""
    ragged, labels, _ = toy
    found = FusionClassifier("linear", epochs=2, random_state=0).fit(ragged, labels)
    monkeypatch.setattr("fusionkit.fit.train.decisions.STREAMED_BYTES", 0)
    again = FusionClassifier("linear", epochs=2, random_state=0).fit(ragged, labels)
    np.testing.assert_array_equal(again.layer_weights_, found.layer_weights_)
    np.testing.assert_array_equal(again.predict(ragged), found.predict(ragged))


def test_the_first_token_is_the_first_that_has_a_state(toy: Any) -> None:
    ragged, labels, _ = toy
    mask = ragged.row_mask.copy()
    several = np.flatnonzero(np.diff(ragged.row_offsets) > 1)
    mask[ragged.row_offsets[several]] = False
    second = Ragged(ragged.hidden_states, ragged.row_offsets, mask)
    kept = [torch.from_numpy(mask[slice(*ragged.row_offsets[i : i + 2])]) for i in range(60)]
    found: Any = FusionClassifier("extra-layers:1", pool="cls", epochs=1).fit(second, labels)
    rows = [second[i][kept[i]][:, list(found.layers_)] for i in range(60)]
    with torch.no_grad():
        fused = torch.stack([found.model_.fusion(each, torch.tensor([0, len(each)]))[0] for each in rows])
        expected = found.model_.head.score(fused).softmax(1).numpy()
    np.testing.assert_allclose(found.predict_proba(second), expected, rtol=1e-3)


def without_rows(ragged: Ragged) -> Ragged:
    return Ragged(ragged.hidden_states, np.array([0, 0, *ragged.row_offsets[2:]]), ragged.row_mask)


WEIGHTS: Any = {"a": 1}
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "a fusion that is none": (lambda x, y, t: FusionClassifier("atention").fit(x, y), UsageError, "did you mean"),
    "a head of another task": (lambda x, y, t: FusionClassifier(head="crf").fit(x, y), UsageError, "unknown head"),
    "a pool for a head that pools": (
        lambda x, y, t: FusionClassifier(head="bcn", pool="max").fit(x, y), ValueError, "leave out pool='max'",
    ),
    "an option out of range": (lambda x, y, t: FusionClassifier(lr=-1).fit(x, y), UsageError, "lr is out of range"),
    "a layer that is not there": (lambda x, y, t: FusionClassifier("layer:9").fit(x, y), UsageError, "layer"),
    "layers that are not there": (lambda x, y, t: FusionClassifier(fusion_layers="7").fit(x, y), UsageError, "layers"),
    "weights for a CRF": (
        lambda x, y, t: FusionTagger(head="crf", class_weight="balanced").fit(x, t), UsageError, "cannot use",
    ),
    "fewer labels than examples": (lambda x, y, t: FusionClassifier().fit(x, y[:9]), ValueError, "inconsistent"),
    "one class": (lambda x, y, t: FusionClassifier().fit(x, ["a"] * 60), ValueError, "1 class"),
    "numbers for labels": (lambda x, y, t: FusionClassifier().fit(x, np.linspace(0, 1, 60)), ValueError, "continuous"),
    "labels for numbers": (lambda x, y, t: FusionRegressor().fit(x, y), ValueError, "could not convert"),
    "a number missing": (lambda x, y, t: FusionRegressor().fit(x, [float("nan")] * 60), ValueError, "NaN"),
    "a tag missing": (lambda x, y, t: FusionTagger().fit(x, [t[0][:-1], *t[1:]]), ValueError, "one tag a row"),
    "a tag missing to score": (
        lambda x, y, t: FusionTagger(epochs=1).fit(x, t).score(x, [t[0][:-1], *t[1:]]), ValueError, "one tag a row",
    ),
    "a tag that is None": (
        lambda x, y, t: FusionTagger().fit(x, [[None, *t[0][1:]], *t[1:]]), ValueError, "example 0, row 0 has no tag",
    ),
    "numbers for tags": (lambda x, y, t: FusionTagger().fit(x, [1] * 60), ValueError, "one tag a row"),
    "texts without a method": (lambda x, y, t: FusionClassifier().fit(["a"] * 60, y), ValueError, "texts"),
    "one number held out": (
        lambda x, y, t: FusionRegressor(validation_fraction=0.01).fit(x, np.arange(60.0)), ValueError, "holds out 1",
    ),
    "states with NaN": (
        lambda x, y, t: FusionClassifier().fit(Ragged(x.hidden_states / 0, x.row_offsets, x.row_mask), y),
        ValueError, "NaN",
    ),
    "no tags": (lambda x, y, t: FusionTagger().fit(x, None), ValueError, "requires y"),
    "labels for tags": (lambda x, y, t: FusionTagger().fit(x, y), ValueError, "one tag a row"),
    "a table of tags": (lambda x, y, t: FusionTagger().fit(x, [["a"] * 60]), ValueError, "inconsistent numbers"),
    "no examples": (lambda x, y, t: FusionClassifier().fit(x[:0], y[:0]), ValueError, "minimum of 1"),
    "an example without rows": (
        lambda x, y, t: FusionClassifier(pool="cls").fit(without_rows(x), y), UsageError, "example 0 cannot be read",
    ),
    "an array with NaN": (lambda x, y, t: FusionClassifier().fit(np.full((60, 3, 6), np.nan), y), ValueError, "NaN"),
    "an array of four axes": (lambda x, y, t: FusionClassifier().fit(np.zeros((60, 3, 6, 2)), y), ValueError, "dim"),
    "other layers to predict": (
        lambda x, y, t: FusionClassifier(epochs=1, pool="cls").fit(x, y).predict(np.zeros((2, 2, 6))),
        ValueError, "2 layers of 6 features, but FusionClassifier is expecting 3 layers of 6",
    ),
    "several rows to predict after one": (
        lambda x, y, t: FusionClassifier(epochs=1).fit(np.zeros((60, 3, 6)), y).predict(x), UsageError, "one row",
    ),
    "patience without validation": (
        lambda x, y, t: FusionClassifier(patience=2).fit(x, y), ValueError, "validation_fraction",
    ),
    "an encoder for stored states": (
        lambda x, y, t: FusionClassifier(encoder="minilm").fit(x, y), ValueError, "encoder='minilm' is for a method",
    ),
    "a device for stored states": (
        lambda x, y, t: FusionClassifier(device="cuda").fit(x, y), ValueError, "device='cuda' is for a method",
    ),
    "a fraction above 1": (lambda x, y, t: FusionClassifier(validation_fraction=2).fit(x, y), ValueError, "leaves"),
    "a fraction that is nearly all": (
        lambda x, y, t: FusionClassifier(validation_fraction=0.9).fit(x[:4], ["a", "b"] * 2), ValueError, "leaves none",
    ),
    "weights by class": (lambda x, y, t: FusionClassifier(class_weight=WEIGHTS).fit(x, y), ValueError, "balanced"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_refused_by_name(toy: Any, name: str) -> None:
    wrong, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        wrong(*toy)
