"""The spelling of a fusion and its options: ``name:argument,option=value,…``.

``last``, ``layer:3``, ``dwatt:scale=yes``, ``linear:norm=token,gamma=no``. The name is one of the table, of an
installed package or an import path, ``mylab.mix:MyFusion:scale=yes`` (:mod:`fusionkit.registry`). A fusion's options
are the keyword-only parameters of its constructor and of its ``reads``, with their types; one without a default is its
argument.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fusionkit.errors import UsageError, unknown_name

TRUTH = {"yes": True, "no": False}
HERE = Path(__file__).parent
SIGNED = ("__init__", "reads")  # whose keyword-only parameters are the options


@dataclass(frozen=True)
class Option:
    """One option of a fusion.

    Attributes:
        choices: the texts allowed, with the value of each; None allows any integer.
        required: True for the fusion's argument, which is written without its name.
    """

    name: str
    choices: Mapping[str, Any] | None
    required: bool
    default: Any

    def __str__(self) -> str:
        return f"{self.name}={'|'.join(self.choices) if self.choices else 'INTEGER'}"

    def write(self, value: Any) -> str:
        return str(value) if self.choices is None else next(k for k, v in self.choices.items() if v == value)


def options_of(fusion: type[Any]) -> dict[str, Option]:
    """A fusion's options by name, its argument first.

    Raises:
        TypeError: one of another type than bool, int or ``Literal`` of texts.
    """
    found = []
    for function in (getattr(fusion, name) for name in SIGNED):
        types = typing.get_type_hints(function)
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                required = parameter.default is parameter.empty
                found.append(Option(name, _choices(name, types.get(name)), required, parameter.default))
    return {option.name: option for option in sorted(found, key=lambda option: not option.required)}


def outline(target: str) -> type[Any]:
    """A class with the signatures of one of fusionkit's own, read off its file: importing it takes torch's seconds.

    Args:
        target: an import path of the table, ``fusionkit.fusions.last:Last``.
    """
    module, _, name = target.partition(":")
    file = HERE / f"{module.rpartition('.')[2]}.py"
    body = ast.parse(file.read_text(encoding="utf-8")).body
    [found] = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    signed = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name in SIGNED]
    for function in signed:
        function.body = [ast.Pass()]
    found.bases, found.body = [], list(signed)
    alone = ast.fix_missing_locations(ast.Module([found], []))
    code = compile(alone, str(file), "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    names: dict[str, Any] = {"Literal": Literal, "__name__": __name__}
    exec(code, names)
    outlined: type[Any] = names[name]
    return outlined


def _choices(name: str, kind: Any) -> Mapping[str, Any] | None:
    values = typing.get_args(kind)
    if kind is int:
        return None
    if kind is bool:
        return TRUTH
    if typing.get_origin(kind) is not Literal or not all(isinstance(value, str) for value in values):
        raise TypeError(f"its option {name} is neither bool, int nor Literal of texts")
    return {value: value for value in values}


def accepted(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a fusion that its constructor, or its ``reads``, takes."""
    return {name: options[name] for name in _parameters(function) if name in options}


@cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def parse(kind: str, fusion: type[Any], options: str | None) -> dict[str, Any]:
    """All options of a fusion, defaults included.

    Args:
        kind: its name. options: the text after the name's colon; None where there is no colon.

    Raises:
        UsageError: an unknown option (with the nearest), a value that does not fit, an argument that is missing or not
            taken, an option given twice.
    """
    known, given = options_of(fusion), dict[str, Any]()
    argument = next((name for name, option in known.items() if option.required), None)
    text = kind if options is None else f"{kind}:{options}"

    def refused(what: str) -> UsageError:
        return UsageError(what, expected=usage(kind, fusion), received=text, remedy="write it as expected")

    if options is not None and not known:
        raise refused(f"fusion {kind!r} takes no options")
    for place, part in enumerate([] if options is None else options.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            if argument is None or place > 0:
                raise refused(f"{part!r} is no option of fusion {kind!r}")
            name, value = argument, part
        if name not in known:
            raise unknown_name(f"option of fusion {kind!r}", name, known)
        if name in given:
            raise refused(f"{name} of fusion {kind!r} is given twice")
        choices = known[name].choices
        if choices is not None and value not in choices:
            raise unknown_name(f"{name} of fusion {kind!r}", value, choices)
        try:
            given[name] = int(value) if choices is None else choices[value]
        except ValueError:
            raise refused(f"{name} of fusion {kind!r} is no integer") from None
    if argument is not None and argument not in given:
        raise refused(f"fusion {text!r} is not complete")
    return {name: given.get(name, option.default) for name, option in known.items()}


def spell(kind: str, fusion: type[Any], values: Mapping[str, Any]) -> str:
    """The one spelling of a fusion: defaults left out, options in the order of its constructor."""
    parts = [
        option.write(values[name]) if option.required else f"{name}={option.write(values[name])}"
        for name, option in options_of(fusion).items()
        if option.required or values[name] != option.default
    ]
    return f"{kind}:{','.join(parts)}" if parts else kind


def named(kind: str, fusion: type[Any]) -> str:
    """A fusion's name as help shows it, its argument behind: ``layer:k``."""
    return ":".join([kind, *(name for name, option in options_of(fusion).items() if option.required)])


def usage(kind: str, fusion: type[Any]) -> str:
    """All that may be written: ``linear[:gamma=yes|no,norm=none|token,embeddings=yes|no]``."""
    optional = ",".join(str(option) for option in options_of(fusion).values() if not option.required)
    name = named(kind, fusion)
    return name if not optional else f"{name}[{',' if ':' in name else ':'}{optional}]"
