"""The names that help and completion show are those of the tables, in their order."""

from __future__ import annotations

import numpy as np

from fusionkit import logs, metrics, names, report, statistics, tasks


def test_the_metrics_are_those_of_all_tasks() -> None:
    one, none = np.zeros(1, dtype=np.int64), np.zeros(0)
    scores = [
        metrics.class_scores(one, one), metrics.positive_scores(one, one, 0), metrics.span_scores(0, 0, 0, 0.0),
        metrics.number_scores(none, none), metrics.masked_scores(np.ones(1), np.ones(1, dtype=np.bool_)),
        metrics.label_set_scores(one, one, one, 0, 1), metrics.joint_means({"tags": {"f1": 0.0}}, 0.5),
    ]  # fmt: skip
    assert {name for each in scores for name in each} - {"tags_f1"} == {*names.METRICS}


def test_ids_are_found_in_capitals_too_and_in_a_fixed_order() -> None:
    assert names.id_column(["text", "idx", "ID"]) == "ID"
    assert names.id_column(["Guid", "text"]) == "Guid"
    assert names.id_column(["text", "identity"]) is None


def test_the_names_are_the_tables_keys() -> None:
    assert (*tasks.TASKS, *tasks.SHORT) == names.TASKS
    assert tuple(statistics.TESTS) == names.TESTS
    assert tuple(statistics.CORRECTIONS) == names.CORRECTIONS
    assert tuple(report.FIGURES) == names.FIGURES
    assert tuple(logs.KINDS) == names.LOGS
