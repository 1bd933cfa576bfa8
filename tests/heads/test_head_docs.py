"""What the docstrings of heads say, which the documents' table is made of: sizes, tasks, dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusionkit.heads import HEADS, REGISTRY, build_head
from fusionkit.tasks import TASKS


def rows(tables: Any) -> list[list[str]]:
    table = tables.TABLES["heads"]()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_the_page_has_every_head_with_its_tasks(tables: Any) -> None:
    assert [row[0].strip("`") for row in rows(tables)] == list(HEADS)
    for name, _, tasks, _, _, dropout, source in rows(tables):
        head = name.strip("`")
        assert tasks.split(", ") == [task.name for task in TASKS.values() if head in task.heads]
        assert "none" not in (dropout, source)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(("width", "classes"), [(384, 9), (1024, 5)])
def test_the_parameters_that_are_said_are_those_that_are_there(
    tables: Any, name: str, width: int, classes: int
) -> None:
    with torch.device("meta"):
        built = sum(p.numel() for p in build_head(name, width, classes, 0.0).parameters())
    assert tables.parameters_said(REGISTRY.load(name).value, {"d": width, "C": classes}) == built
