"""Labels as a column holds them: what counts as missing, and what is refused by example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fusionkit.errors import DataError, UsageError
from fusionkit.tasks.label_column import LabelColumn, has_label, read_label_lists, read_labels, read_tags


def column(values: Any, **others: list[Any]) -> LabelColumn:
    frame = pd.DataFrame({"label": values, **others})
    return LabelColumn(frame, "train", "label", "tokens" if "tokens" in others else None, None, [])


@pytest.mark.parametrize("value", [None, "", float("nan"), np.float64("nan"), pd.NA, pd.NaT])
def test_a_missing_value_is_no_label(value: object) -> None:
    assert not has_label(value)


@pytest.mark.parametrize("value", ["x", "nan", 0, 0.0, False, [], np.array(["x", None])])
def test_any_other_value_is_a_label(value: object) -> None:
    assert has_label(value)


@pytest.mark.parametrize("kind", ["string", "category", "object"])
def test_no_class_is_made_of_a_missing_label(kind: str) -> None:
    given = column(pd.Series(["x", None], dtype=kind))
    gold, present = read_labels(given)
    assert (gold, present.tolist()) == (["x", None], [True, False])
    assert given.notes == ["train: 1 example without label: left out"]


@pytest.mark.parametrize("missing", [None, float("nan"), ""])
def test_a_list_with_a_missing_label_is_refused(missing: object) -> None:
    assert read_label_lists(column([["a", "a"], [], None]))[0] == [["a"], [], None]
    with pytest.raises(DataError, match="train, example 1: 'label' has an entry without a value"):
        read_label_lists(column([["a"], ["b", missing]]))


@pytest.mark.parametrize("values", [["xy", "z"], [1, 2], [["B-x", "O"], "z"]])
def test_a_value_that_is_no_list_of_tags_is_refused(values: list[Any]) -> None:
    """Not even a text of as many letters as there are words."""
    with pytest.raises(UsageError, match=r"train, example [01]: 'label' holds no tags") as caught:
        read_tags(column(values, tokens=[["a", "b"], ["c"]]))
    assert caught.value.received in ("'xy'", "1", "'z'")


def test_a_column_without_any_value_has_no_tags() -> None:
    gold, present = read_tags(column([None, None], tokens=[["a", "b"], ["c"]]))
    assert (gold, present.tolist()) == ([None, None], [False, False])
