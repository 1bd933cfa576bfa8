"""An option as one entry: what it is for, which values it takes, and its default.

    warmup: float = option(0.0, "Share of the steps in which the rate rises from 0.", ge=0, lt=1)

A spec's field with such an entry is checked when the spec is made. The same entry defines the flag of a command with
its help, the key of a YAML file and how its text is read, the key's part of a JSON schema, and a column of results.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
import re
from collections.abc import Callable, Container, Mapping
from functools import cache, cached_property
from typing import Any, TypeVar

from fusionkit.errors import UsageError, unknown_name

Spec = TypeVar("Spec", bound=type[Any])
KINDS: dict[str, type[Any]] = {"int": int, "float": float, "bool": bool}
YES_NO = {"yes": True, "true": True, "no": False, "false": False}
WANTED: dict[type[Any], str] = {int: "a whole number", float: "a number", str: "a text", bool: "yes or no"}
# The bounds of a number, named as in pydantic's ``Field``: the comparison, and its words.
BOUNDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "ge": (operator.ge, "from"), "gt": (operator.gt, "above"), "le": (operator.le, "up to"),
    "lt": (operator.lt, "below"),
}  # fmt: skip
PRODUCT, SWEPT, WHOLE, NONE = "product", "swept", "whole", "none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionInfo:
    """One option. An entry of a spec's field takes name, kind, default and ``optional`` from the field.

    Attributes:
        help: a sentence or two for the user. name: the field's name. kind: int, float, str or bool. default: the value
            if none is given. optional: None is allowed.
        choices: the only texts allowed. gt, ge, lt, le: bounds of a number. pattern: a regular expression for the whole
            text. unit, example: those of the value, for error messages.
        later: the field is part of a digest only if its value is not the default, so that digests on record stay.
        flag: its name in commands and YAML files; the field's name unless given. parameter: its name in functions; the
            flag unless given. metavar: the placeholder of its value, for help.
        lists: the meaning of several values: ``swept``, a flag given several times makes a run for each; ``whole``,
            they are one value together; ``product``, a list in a file makes a block for each; ``none``, not allowed.
        place: the value is a path; in a file it is relative to that file.
        named: each of several tasks may have its own value. The flag is given several times as NAME=VALUE, in a file it
            is a block of them, and as one text they are joined, ``topic=classification,slots=tagging``.
    """

    help: str
    name: str = ""
    kind: type[Any] = str
    default: Any = None
    optional: bool = False
    choices: tuple[str, ...] = ()
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    pattern: str | None = None
    unit: str = ""
    example: str = ""
    later: bool = False
    flag: str = ""
    parameter: str = ""
    metavar: str | None = None
    lists: str = PRODUCT
    place: bool = False
    named: bool = False

    def __post_init__(self) -> None:
        flag = self.flag or self.name.replace("_", "-")
        object.__setattr__(self, "flag", flag)
        object.__setattr__(self, "parameter", self.parameter or flag.replace("-", "_"))

    @cached_property
    def bounds(self) -> list[tuple[str, float]]:
        return [(name, bound) for name in BOUNDS if (bound := getattr(self, name)) is not None]

    @property
    def expected(self) -> str:
        """The range of a number, in words."""
        words = [f"{BOUNDS[name][1]} {bound:g}" for name, bound in self.bounds]
        if len(words) == 1 and self.ge is not None:
            words = [f"{self.ge:g} or more"]
        return ", ".join([*filter(None, [self.unit]), *words]) or WANTED[self.kind]

    def read(self, text: str) -> Any:
        """The value of a text.

        Raises:
            ValueError: the text is no value of this kind.
        """
        if self.kind is bool:
            if (value := YES_NO.get(text.lower())) is None:
                raise ValueError(text)
            return value
        return self.kind(text)

    def check(self, value: Any) -> Any:
        """The value as stored, with numbers converted to ``kind``, because JSON and digests distinguish 0 from 0.0.

        Raises:
            UsageError: a value that the option cannot have.
        """
        if value is None and self.optional:
            return None
        if self.kind in (int, float):
            return self._number(value)
        if not isinstance(value, self.kind):
            raise self._strange(WANTED[self.kind], value)
        if self.choices and value not in self.choices:
            raise unknown_name(self.flag, str(value), self.choices)
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            raise self._strange(self.example, value)
        return value

    def _number(self, value: Any) -> int | float:
        try:
            found = _whole(value) if self.kind is int else _real(value)
            finite = math.isfinite(found)  # a whole number of hundreds of digits overflows
        except (TypeError, OverflowError):
            raise self._strange(WANTED[self.kind], value) from None
        if not (finite and all(BOUNDS[name][0](found, bound) for name, bound in self.bounds)):
            raise self._wrong(self.expected, value)
        return found

    def _strange(self, expected: str, received: object) -> UsageError:
        remedy = "give a value of that form"
        return UsageError(f"{self.flag} has a wrong value", expected=expected, received=repr(received), remedy=remedy)

    def _wrong(self, expected: str, received: object) -> UsageError:
        remedy = "choose a value in that range"
        return UsageError(f"{self.flag} is out of range", expected=expected, received=repr(received), remedy=remedy)


def joined(given: str | Mapping[str, str] | None) -> str | None:
    """The values of several tasks as one text, ``{topic: crf}`` as ``topic=crf``; texts stay as they are."""
    return ",".join(f"{name}={value}" for name, value in given.items()) if isinstance(given, Mapping) else given


def _whole(value: Any) -> int:
    if type(value) is not int:  # the fast path: a sweep makes thousands of specs
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    return value


def _real(value: Any) -> float:
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        raise TypeError  # float() would read texts too
    return float(value) + 0.0  # -0.0 becomes 0.0


def about(help: str, **entry: Any) -> dict[str, OptionInfo]:
    """The metadata of a field that is an option; ``entry`` are attributes of :class:`OptionInfo`."""
    return {"option": OptionInfo(help=help, **entry)}


def option(default: Any, help: str, **entry: Any) -> Any:
    """A dataclass's field that is an option with a default."""
    return dataclasses.field(default=default, metadata=about(help, **entry))


def options_of(spec: Any) -> Mapping[str, OptionInfo]:
    """The entries of a dataclass's fields, by name."""
    return _entries(spec)


@cache
def _entries(spec: Any) -> Mapping[str, OptionInfo]:
    found = {}
    for field in dataclasses.fields(spec):
        if "option" in field.metadata:
            kind, _, rest = str(field.type).partition(" | ")
            default = None if field.default is dataclasses.MISSING else field.default
            found[field.name] = dataclasses.replace(
                field.metadata["option"],
                name=field.name,
                kind=KINDS.get(kind, str),
                default=default,
                optional=rest == "None",
            )
    return found


def check_options(spec: Any, but: Container[str] = ()) -> None:
    """Check a frozen spec's options and store the values that :meth:`OptionInfo.check` returns; for ``__post_init__``.

    Raises:
        UsageError: a value that its option cannot have.
    """
    for name, entry in options_of(type(spec)).items():
        value = getattr(spec, name)
        if name not in but and (found := entry.check(value)) is not value:
            object.__setattr__(spec, name, found)


def documented(spec: Spec) -> Spec:
    """Add a spec's options to its docstring."""
    told = "".join(f"        {name}: {entry.help}\n" for name, entry in options_of(spec).items())
    spec.__doc__ = f"{spec.__doc__}\n\n    Attributes:\n{told}    "
    return spec
