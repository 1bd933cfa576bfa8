"""The names that help and completion show are those of the tables, in their order."""

from __future__ import annotations

from fusionkit import fusions, heads, logs, names, statistics, tasks


def test_the_names_are_the_tables_keys() -> None:
    assert {name: fusions.usage(name, fusion) for name, fusion in fusions.FUSIONS.items()} == names.FUSIONS
    assert list(names.FUSIONS) == list(fusions.FUSIONS)
    assert (*heads.HEADS, *heads.LM_HEADS) == names.HEADS
    assert (*tasks.TASKS, *tasks.SHORT) == names.TASKS
    assert tuple(statistics.INTERVALS) == names.INTERVALS
    assert tuple(statistics.TESTS) == names.TESTS
    assert tuple(statistics.CORRECTIONS) == names.CORRECTIONS
    assert tuple(logs.KINDS) == names.LOGS
