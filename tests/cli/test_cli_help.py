"""Help, versions and the surface that a user meets first."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pytest

import fusionkit as package
from fusionkit.cli.fit import fit
from fusionkit.cli.main import COMMANDS
from fusionkit.fusions import REGISTRY as FUSIONS
from fusionkit.heads import REGISTRY as HEADS
from fusionkit.methods import REGISTRY as METHODS

Command = Callable[..., Any]


def test_help_lists_every_command(fusionkit: Command) -> None:
    done = fusionkit("--help")
    assert (done.code, done.err) == (0, "")
    assert all(f"\n  {name} " in done.out for name in COMMANDS)


def test_every_file_of_a_command_is_in_the_table() -> None:
    folder = Path(importlib.import_module("fusionkit.cli").__path__[0])
    modules = {path.stem: importlib.import_module(f"fusionkit.cli.{path.stem}") for path in folder.glob("[!_]*.py")}
    commands = {name for name, module in modules.items() if isinstance(getattr(module, name, None), click.Command)}
    assert commands == set(COMMANDS)
    assert len(modules) > len(commands) > 5


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_its_options(name: str, fusionkit: Command) -> None:
    done = fusionkit(name, "--help")
    assert done.code == 0
    assert done.err == ""
    command = getattr(importlib.import_module(f"fusionkit.cli.{name}"), name)
    assert command.help
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert options
    assert all(option.opts[0] in done.out for option in options)
    assert any("--json" in option.opts for option in options)  # every command prints a result


def test_help_of_fit_lists_every_fusion_head_and_method() -> None:
    told = {option.opts[0]: str(option.help) for option in fit.params if isinstance(option, click.Option)}
    known = {"--fusion": [*FUSIONS.usages.values()], "--head": [*HEADS.names()], "--method": [*METHODS.usages.values()]}
    for flag, names in known.items():
        assert [name for name in names if name not in told[flag]] == []


def test_the_version_is_the_packages(fusionkit: Command) -> None:
    assert fusionkit("--version").out.strip().endswith(version("fusionkit"))
    assert package.__version__ == version("fusionkit")


def test_no_command_at_all_shows_the_help(fusionkit: Command) -> None:
    done = fusionkit()
    assert done.code == 2
    assert "Usage: " in done.err
    assert all(text in done.err for text in COMMANDS.values())


def test_the_packages_surface_is_what_it_says_it_is() -> None:
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert package.Store.__module__ == "fusionkit.store.reader"
    with pytest.raises(AttributeError, match="no attribute 'Stoer'"):
        getattr(package, "Stoer")  # noqa: B009
