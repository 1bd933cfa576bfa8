"""The names that help and completion show are those of the tables, in their order."""

from __future__ import annotations

from fusionkit import logs, names, report, statistics, tasks


def test_the_names_are_the_tables_keys() -> None:
    assert (*tasks.TASKS, *tasks.SHORT) == names.TASKS
    assert tuple(statistics.INTERVALS) == names.INTERVALS
    assert tuple(statistics.TESTS) == names.TESTS
    assert tuple(statistics.CORRECTIONS) == names.CORRECTIONS
    assert tuple(report.FIGURES) == names.FIGURES
    assert tuple(logs.KINDS) == names.LOGS
