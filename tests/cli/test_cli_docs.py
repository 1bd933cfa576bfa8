"""docs/cli.md: every command, and every option with an example that the command takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from fusionkit.cli.main import COMMANDS, group

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_stands_on_the_page(name: str) -> None:
    assert f"fusionkit {name}" in PAGE
    command = group.get_command(click.Context(group), name)
    assert command is not None
    shown = "estimate" not in name and any(isinstance(each, click.Option) for each in command.params[:-1])
    assert (f"<!-- options: {name} -->" in PAGE) is shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_taken(name: str, tables: Any) -> None:
    """By the option's own check of what is given to it."""
    command = group.get_command(click.Context(group), name)
    assert command is not None
    context = click.Context(command)
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag:
            flag, _, value = tables.example_of(name, option).partition(" ")
            assert flag in option.opts
            assert value
            option.type_cast_value(context, (value,) if option.multiple else value)


def test_a_row_has_what_the_option_says(tables: Any) -> None:
    rows = tables.options_of_command("fit").splitlines()
    assert "| `--batch-size` | Examples per step. | `32` | `--batch-size 16` |" in rows
    assert "| `--out` | Folder that keeps the runs. | required | `--out runs` |" in rows
