"""scikit-learn's splitting, copying and searching over ragged examples, a store's split and arrays."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    train_test_split,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fusionkit import FusionClassifier, FusionRegressor, FusionTagger, Ragged
from fusionkit.store import Store


def test_cross_validation_is_a_loop_over_folds(store_of: Callable[[str], Store]) -> None:
    train = store_of("mean")["train"]
    y = train.examples["intent"]
    estimator = FusionClassifier("linear", epochs=15, lr=5e-3, batch_size=8)
    expected = []
    for learned, judged in KFold(3).split(np.zeros(40), y):
        fitted = clone(estimator).fit(train.take(learned), y.iloc[learned])
        expected.append(float((fitted.predict(train.take(judged)) == y.iloc[judged]).mean()))
    ragged = train.take(np.arange(40))
    for given in (train, ragged, ragged.hidden_states.float().numpy()):
        assert cross_val_score(estimator, given, y, cv=KFold(3)).tolist() == expected
    assert len(set(expected)) > 1


def test_a_grid_search_over_a_split_finds_the_layer_that_knows(toy: Any) -> None:
    ragged, labels, _ = toy
    grid = {"fusion": ["layer:0", "layer:1", "layer:2"], "pool": ["cls", "mean"]}
    search = GridSearchCV(FusionClassifier(epochs=10, lr=1e-2), grid, cv=2).fit(ragged, labels)
    assert search.best_params_ == {"fusion": "layer:1", "pool": "cls"}
    assert search.best_score_ > 0.9
    assert len(search.cv_results_["params"]) == 6
    assert search.predict(ragged[:5]).tolist() == labels[:5].tolist()


def test_a_tagger_is_cross_validated_over_lists_of_tags(toy: Any) -> None:
    ragged, _, tags = toy
    scores = cross_val_score(FusionTagger("layer:1", epochs=10, lr=1e-2), ragged, tags, cv=KFold(3))
    assert len(scores) == 3
    assert min(scores) > 0.95


def test_a_regressor_is_cross_validated_by_its_r2(toy: Any) -> None:
    ragged, _, _ = toy
    numbers = [float(ragged[i][0, 1, 2]) for i in range(60)]
    found = cross_val_score(FusionRegressor("layer:1", epochs=30, lr=1e-2, pool="cls"), ragged, numbers, cv=2)
    assert min(found) > 0.9
    predicted = cross_val_predict(
        FusionRegressor("layer:1", epochs=30, lr=1e-2, pool="cls"), ragged, numbers, cv=KFold(2)
    )
    assert predicted.shape == (60,)


def test_ragged_examples_are_split_with_their_labels(toy: Any) -> None:
    ragged, labels, _ = toy
    learned, judged, learned_labels, judged_labels = train_test_split(ragged, labels, test_size=0.25, random_state=0)
    assert isinstance(learned, Ragged)
    assert (len(learned), len(judged)) == (45, 15)
    for part, names in ((learned, learned_labels), (judged, judged_labels)):
        assert ["up" if part[i][0, 1, 2] > 0 else "down" for i in range(len(part))] == names.tolist()


def test_a_pipeline_over_a_plain_table(toy: Any) -> None:
    ragged, labels, _ = toy
    table = np.array([ragged[i][0, 1].tolist() for i in range(60)])
    found = make_pipeline(StandardScaler(), FusionClassifier("last", epochs=10, lr=1e-2)).fit(table, labels)
    assert found.score(table, labels) > 0.95


@pytest.mark.parametrize("kind", [FusionClassifier, FusionTagger, FusionRegressor])
def test_a_clone_has_the_choices_and_not_what_was_learned(kind: Any, toy: Any) -> None:
    ragged, labels, tags = toy
    y = {FusionClassifier: labels, FusionTagger: tags, FusionRegressor: np.arange(60.0)}[kind]
    fitted = kind("concat", epochs=1, lr=0.1).fit(ragged, y)
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert (copy.fusion, copy.epochs, copy.lr) == ("concat", 1, 0.1)
    assert not [name for name in vars(copy) if name.endswith("_")]
    kept = pickle.loads(pickle.dumps(fitted))
    assert (
        np.asarray(kept.predict(ragged), dtype=object).tolist()
        == np.asarray(fitted.predict(ragged), dtype=object).tolist()
    )
