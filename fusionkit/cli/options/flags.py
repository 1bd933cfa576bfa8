"""Flags of a command, made from the options' entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from fusionkit.options.entry import SWEPT, WHOLE, OptionInfo

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]


def in_one(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> str | None:
    """The values of a flag for several tasks, as one text: ``topic=classification,slots=tagging``."""
    return ",".join(given) or None


def flag(entry: OptionInfo, **more: Any) -> Decorator[Any]:
    """The flag of one option; ``more`` are arguments of ``click.option`` that override the entry's."""
    several, default = entry.named or entry.lists in (SWEPT, WHOLE), entry.default
    if several and default is not None and not isinstance(default, tuple):
        default = (default,)
    kind: Any = click.Choice(entry.choices) if entry.choices else entry.kind
    if kind is int and entry.ge is not None:
        kind = click.IntRange(min=int(entry.ge))
    asked: dict[str, Any] = {"is_flag": True, "default": default}
    if entry.kind is not bool:
        asked = {
            "type": kind,
            "multiple": several,
            "default": default,
            "show_default": default is not None,
            "metavar": entry.metavar,
            "callback": in_one if entry.named else None,
        }
    return click.option(f"--{entry.flag}", entry.parameter, **{"help": entry.help, **asked, **more})


def flags(entries: Iterable[OptionInfo], more: Mapping[str, Mapping[str, Any]]) -> list[Decorator[Any]]:
    """The flags of several options; ``more`` by flag."""
    return [flag(entry, **more.get(entry.flag, {})) for entry in entries]


def with_all(decorators: Iterable[Decorator[Any]]) -> Decorator[Any]:
    """Add all of these to a command, in their order."""

    def added(command: Command) -> Command:
        for decorator in reversed([*decorators]):
            command = decorator(command)
        return command

    return added
