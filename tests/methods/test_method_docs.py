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


@pytest.fixture(scope="module")
def details(tables: Any) -> list[list[str]]:
    """The cells of the table of their details, counted alike."""
    return rows(tables.TABLES["method-details"]())


def test_the_page_has_every_method_in_order(page: list[list[str]], details: list[list[str]]) -> None:
    for found, columns in ((page, 5), (details, 6)):
        assert [row[0] for row in found] == [f"`{method_named(name)}`" for name in METHODS]
        assert {len(row) for row in found} == {columns}


def test_the_parameters_that_are_said_are_those_that_are_counted(
    tables: Any, page: list[list[str]], details: list[list[str]]
) -> None:
    base = {"L": 12, "d": 768, "f": 3072, "N": 108_891_648}
    large = {"L": 24, "d": 1024, "f": 4096, "N": 334_092_288}
    for name, row, detail in zip(METHODS, page, details, strict=True):
        made = method_class(name)
        argument = {option.name: tables.WIDTHS[name] for option in options_of(made).values() if option.required}
        for cell, size in ((row[2], base), (detail[2], large)):
            counted = int(cell.rpartition(" ")[2].replace(",", ""))
            assert tables.parameters_said(made, {**size, **argument}) == counted, name


def test_every_option_is_told_of(tables: Any) -> None:
    told = dict(rows(tables.TABLES["method-options"]()))
    for name in METHODS:
        for option in options_of(method_class(name)).values():
            assert option.required or f"`{option.name}" in told[f"`{name}`"], (name, option.name)
    assert len(told) > 4
