"""What the docstrings of fusions say, which the documents' tables are made of: sizes, layers, options."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fusionkit.fusions import FUSIONS, build_fusion, fusion_class, fusion_layers, named, options_of


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_the_page_has_every_fusion_in_order(tables: Any) -> None:
    assert [row[0] for row in rows(tables.TABLES["fusions"]())] == [
        f"`{named(name, fusion_class(name))}`" for name in FUSIONS
    ]


@pytest.mark.parametrize("name", FUSIONS)
@pytest.mark.parametrize(("last", "hidden"), [(6, 384), (24, 1024)])
def test_the_parameters_that_are_said_are_those_that_are_there(tables: Any, name: str, last: int, hidden: int) -> None:
    spelled = re.sub(":[a-z]+$", ":2", named(name, fusion_class(name)))
    layers = len(fusion_layers(spelled, tuple(range(last + 1)), last + 1))
    fusion: Any = build_fusion(spelled, layers, hidden)
    known = {"layers": layers, "hidden": hidden, "d": hidden, "n": 2, "w": hidden // 2, "h": 2, "depth": 6}
    assert tables.parameters_said(fusion_class(name), known) == sum(p.numel() for p in fusion.parameters())


def test_every_option_is_told_of(tables: Any) -> None:
    told = dict(rows(tables.TABLES["options"]()))
    for name in FUSIONS:
        for option in options_of(fusion_class(name)).values():
            assert option.required or f"`{option.name}=" in told[f"`{name}`"]
    assert len(told) > 1


def test_layers_are_told_as_the_papers_have_them(tables: Any) -> None:
    told = {row[0]: row[2] for row in rows(tables.TABLES["fusions"]())}
    expected = {"`last`": "L", "`layer:k`": "k", "`linear`": "0…L", "`concat`": "1…L", "`extra-layers:n`": "L"}
    assert {name: told[name] for name in expected} == expected
