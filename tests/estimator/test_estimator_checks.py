"""scikit-learn's own checks of an estimator: all that apply pass, the others fail for the reason given."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from sklearn.exceptions import SkipTestWarning
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from fusionkit import FusionClassifier, FusionRegressor, FusionTagger

# Small: a check trains up to a dozen times.
CLASSIFIER = FusionClassifier(epochs=5, batch_size=16, lr=5e-3)
REGRESSOR = FusionRegressor(epochs=5, batch_size=16, lr=5e-3)
FAILING: dict[str, dict[str, str]] = {
    "FusionClassifier": {
        "check_class_weight_classifiers": "class_weight is 'balanced' or None, as in a run's spec, and no dict"
    },
    "FusionRegressor": {},
}
# The checks that scikit-learn makes of any estimator without giving it a table to fit.
OF_ANY = (
    "check_do_not_raise_errors_in_init_or_set_params", "check_estimator_cloneable", "check_estimator_repr",
    "check_estimator_tags_renamed", "check_get_params_invariance", "check_mixin_order",
    "check_no_attributes_set_in_init", "check_parameters_default_constructible", "check_set_params",
    "check_valid_tag_types",
)  # fmt: skip


def failing(estimator: Any) -> dict[str, str]:
    return FAILING[type(estimator).__name__]


@parametrize_with_checks([CLASSIFIER, REGRESSOR], expected_failed_checks=failing, xfail_strict=True)  # type: ignore[untyped-decorator]
def test_check(estimator: Any, check: Callable[[Any], None]) -> None:
    """Strict: one that is listed and passes after all is an error."""
    check(estimator)


@pytest.mark.parametrize("estimator", [CLASSIFIER, REGRESSOR], ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("name", ["check_dataframe_column_names_consistency", "check_n_features_in_after_fitting"])
def test_what_scikit_learn_checks_of_its_own_estimators_besides(name: str, estimator: Any) -> None:
    getattr(estimator_checks, name)(type(estimator).__name__, estimator)


def test_every_check_that_is_listed_exists() -> None:
    for estimator, least in ((CLASSIFIER, 50), (REGRESSOR, 45)):
        names = [
            getattr(check, "func", check).__name__
            for _, check in estimator_checks_generator(estimator, legacy=True, mark=None)
        ]
        assert len(names) >= least
        assert set(failing(estimator)) <= set(names)


def test_scikit_learn_itself_leaves_out_a_tagger_which_has_no_tables() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        names = [check.func.__name__ for _, check in estimator_checks_generator(FusionTagger(), legacy=True)]
    assert names == ["check_estimator_cloneable"]
    assert [warning.category for warning in said] == [SkipTestWarning]


@pytest.mark.parametrize("name", OF_ANY)
def test_a_tagger_passes_what_is_checked_without_a_table(name: str) -> None:
    getattr(estimator_checks, name)("FusionTagger", FusionTagger())
