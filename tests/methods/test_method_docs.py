"""What the docstrings of methods say, which the page on methods is made of."""

from __future__ import annotations

from typing import Any

import pytest

from fusionkit.methods import METHODS, method_class, method_named
from fusionkit.options.spelling import options_of


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


@pytest.fixture(scope="module")
def page(tables: Any) -> list[list[str]]:
    """The cells of the table of methods; they are counted on the meta device."""
    return rows(tables.TABLES["methods"]())


def test_the_page_has_every_method_in_order(page: list[list[str]]) -> None:
    assert [row[0] for row in page] == [f"`{method_named(name)}`" for name in METHODS]
    assert {len(row) for row in page} == {10}


def test_the_parameters_that_are_said_are_those_that_are_counted(tables: Any, page: list[list[str]]) -> None:
    sizes = {
        3: {"L": 12, "d": 768, "f": 3072, "N": 108_891_648},
        4: {"L": 24, "d": 1024, "f": 4096, "N": 334_092_288},
    }
    for name, row in zip(METHODS, page, strict=True):
        made = method_class(name)
        argument = {option.name: tables.WIDTHS[name] for option in options_of(made).values() if option.required}
        for column, size in sizes.items():
            counted = int(row[column].rpartition(" ")[2].replace(",", ""))
            assert tables.parameters_said(made, {**size, **argument}) == counted, name


def test_every_option_is_told_of(tables: Any) -> None:
    told = dict(rows(tables.TABLES["method-options"]()))
    for name in METHODS:
        for option in options_of(method_class(name)).values():
            assert option.required or f"`{option.name}" in told[f"`{name}`"], (name, option.name)
    assert len(told) > 4
