"""The spelling of a fusion or a method and its options: ``name:argument,option=value,…``.

``last``, ``layer:3``, ``dwatt:scale=yes``, ``houlsby:64,share=layer``. The name is one of the table or of an
installed package, or an import path, ``mylab.mix:MyFusion:scale=yes`` (:mod:`fusionkit.registry`). The options are the
keyword-only parameters of the class's constructor and of a fusion's ``reads``, with their types; the one without a
default is the argument.

In this file ``noun`` is ``fusion`` or ``method``, ``kind`` the name, and ``made`` its class.
"""

from __future__ import annotations
import __future__

import ast
import importlib.util
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fusionkit.errors import UsageError, unknown_name

TRUTH = {"yes": True, "no": False}
# The names in help, and in errors.
TYPES = {int: ("INTEGER", "integer"), float: ("NUMBER", "number"), str: ("TEXT", "text")}
SIGNED = ("__init__", "reads")  # the functions whose keyword-only parameters are the options


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        choices: the texts allowed, with the value of each; None allows any value of the type.
        required: True for the argument, which is written without its name.
        type: int, float or str, where there are no choices.
    """

    name: str
    choices: Mapping[str, Any] | None
    required: bool
    default: Any
    type: type[Any] = int

    def __str__(self) -> str:
        return f"{self.name}={'|'.join(self.choices) if self.choices else TYPES[self.type][0]}"

    def write(self, value: Any) -> str:
        return str(value) if self.choices is None else next(k for k, v in self.choices.items() if v == value)

    def read(self, text: str) -> Any:
        """The value of a text that is one of the choices, if there are any.

        Raises:
            ValueError: the text is of another type.
        """
        return self.type(text) if self.choices is None else self.choices[text]


def options_of(made: type[Any]) -> dict[str, Option]:
    """The options of a class by name, its argument first.

    Raises:
        TypeError: an option has another type than bool, int, float, str or ``Literal`` of texts.
    """
    found = []
    for function in (getattr(made, name) for name in SIGNED if hasattr(made, name)):
        types = typing.get_type_hints(function)
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                required = parameter.default is parameter.empty
                choices, kind = _choices(name, types.get(name))
                found.append(Option(name, choices, required, parameter.default, kind))
    return {option.name: option for option in sorted(found, key=lambda option: not option.required)}


def options_fault(made: type[Any]) -> str | None:
    """The reason why options of a class cannot be written, or None."""
    try:
        options = options_of(made)
    except (TypeError, ValueError, NameError) as error:
        return str(error)
    if len(required := [name for name, option in options.items() if option.required]) > 1:
        return f"its options {', '.join(required)} have no default; one may"
    return None


def outline(target: str) -> type[Any]:
    """A class with the signatures of one of fusionkit's own, read from its file, because importing torch takes seconds.

    Args:
        target: an import path from the table, ``fusionkit.fusions.last:Last``.
    """
    module, _, name = target.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    file = Path(str(spec.origin))
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


def _choices(name: str, kind: Any) -> tuple[Mapping[str, Any] | None, type[Any]]:
    values = typing.get_args(kind)
    if kind in TYPES:
        return None, kind
    if kind is bool:
        return TRUTH, bool
    if typing.get_origin(kind) is not Literal or not all(isinstance(value, str) for value in values):
        raise TypeError(f"its option {name} is neither bool, int, float, str nor Literal of texts")
    return {value: value for value in values}, str


def accepted(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a constructor, or a fusion's ``reads``, takes."""
    return {name: options[name] for name in _parameters(function) if name in options}


@cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def parse(noun: str, kind: str, made: type[Any], options: str | None, also: str = "") -> dict[str, Any]:
    """All options, defaults included.

    Args:
        options: the text after the name's colon; None where there is no colon. also: a further suggestion for errors.

    Raises:
        UsageError: an unknown option (with the nearest), a value that does not fit, an argument that is missing or not
            taken, an option given twice.
    """
    known, given = options_of(made), dict[str, Any]()
    argument = next((name for name, option in known.items() if option.required), None)
    text = kind if options is None else f"{kind}:{options}"

    def refused(what: str) -> UsageError:
        return UsageError(what, expected=usage(kind, made), received=text, remedy=f"write it as expected{also}")

    if options is not None and not known:
        raise refused(f"{noun} {kind!r} takes no options")
    for place, part in enumerate([] if options is None else options.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            if argument is None or place > 0:
                raise refused(f"{part!r} is no option of {noun} {kind!r}")
            name, value = argument, part
        if name not in known:
            raise unknown_name(f"option of {noun} {kind!r}", name, known)
        if name in given:
            raise refused(f"{name} of {noun} {kind!r} is given twice")
        choices = known[name].choices
        if choices is not None and value not in choices:
            raise unknown_name(f"{name} of {noun} {kind!r}", value, choices)
        try:
            given[name] = known[name].read(value)
        except ValueError:
            raise refused(f"{name} of {noun} {kind!r} is no {TYPES[known[name].type][1]}") from None
    if argument is not None and argument not in given:
        raise refused(f"{noun} {text!r} is not complete")
    return {name: given.get(name, option.default) for name, option in known.items()}


def omitted(made: type[Any], options: str | None) -> Option | None:
    """The argument, if the text after a name leaves it out, else None; ``options`` as in :func:`parse`."""
    argument = next((option for option in options_of(made).values() if option.required), None)
    parts = [] if options is None else options.split(",")
    told = argument is None or any("=" not in part or part.partition("=")[0] == argument.name for part in parts)
    return None if told else argument


def spell(kind: str, made: type[Any], values: Mapping[str, Any]) -> str:
    """The canonical spelling: defaults left out, options in the order of the constructor."""
    parts = [
        option.write(values[name]) if option.required else f"{name}={option.write(values[name])}"
        for name, option in options_of(made).items()
        if option.required or values[name] != option.default
    ]
    return f"{kind}:{','.join(parts)}" if parts else kind


def named(kind: str, made: type[Any]) -> str:
    """A name followed by its argument, as help shows it: ``layer:k``."""
    return ":".join([kind, *(name for name, option in options_of(made).items() if option.required)])


def usage(kind: str, made: type[Any]) -> str:
    """A name with all its options, as help shows it: ``linear[:gamma=yes|no,norm=none|token,embeddings=yes|no]``."""
    optional = ",".join(str(option) for option in options_of(made).values() if not option.required)
    name = named(kind, made)
    return name if not optional else f"{name}[{',' if ':' in name else ':'}{optional}]"
