"""Fusions, heads and methods by name: from fusionkit's table, from an installed package, or by import path.

    NAME            a name of the table, or an entry point of the registry's group in an installed package
    MODULE:OBJECT   an import path, ``mylab.mix:MyFusion``: what Python can import, also from the working folder
    …:OPTIONS       after either, if it takes options; after an import path a comma may replace the colon

A name of the table takes precedence over an entry point, and either over a module of that name. The object of a name is
imported when it is used, so that listing names loads nothing.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fusionkit.errors import UsageError, unknown_name
from fusionkit.options.spelling import outline, usage

DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
IMPORT_PATH = re.compile(rf"(?P<module>{DOTTED}):(?P<object>{DOTTED})(?:[:,](?P<options>.*))?", re.DOTALL)
# The same for other regular expression engines: ASCII letters only, and nothing that needs a backslash.
IMPORT_PATTERN = "[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*"
FIRST_DIGITS = 12  # of a hash that is shown


@dataclass(frozen=True)
class Loaded:
    """The object of an import path, and the module that defines it, which may differ from the path's module.

    ``sha256`` is the hash of that module's file when fusionkit first used the object; None if there is no file.
    """

    value: Any
    module: str
    sha256: str | None


@dataclass(frozen=True)
class Registry:
    """The names of one ``kind``, fusion, head or method: those of fusionkit's ``table``, which has an import path for
    each, and the entry points of a ``group``.
    """

    kind: str
    group: str
    table: Mapping[str, str]

    def names(self) -> tuple[str, ...]:
        """The names of the table, followed by those of installed packages."""
        return (*self.table, *sorted(name for name in _entry_points(self.group) if name not in self.table))

    @cached_property
    def usages(self) -> dict[str, str]:
        """Every name with the options that may follow it, for a table of classes (fusions, methods); for installed
        packages only ``NAME[:…]``.
        """
        return {
            name: usage(name, outline(self.table[name])) if name in self.table else f"{name}[:…]"
            for name in self.names()
        }

    def split(self, text: str) -> tuple[str, str | None]:
        """A name and its options, which are None if no separator follows the name; nothing is imported."""
        name, colon, options = text.partition(":")
        known = name in self.table or name in _entry_points(self.group)
        if not known and (found := IMPORT_PATH.fullmatch(text)):
            return f"{found['module']}:{found['object']}", found["options"]
        return name, options if colon else None

    def path(self, name: str) -> str:
        """The import path that a name stands for; UsageError where it is unknown."""
        if (found := self.table.get(name) or _entry_points(self.group).get(name)) is not None:
            return found
        if IMPORT_PATH.fullmatch(name) is None:
            raise unknown_name(self.kind, name, self.names())
        return name

    def is_own(self, name: str) -> bool:
        """True for a name that is not in fusionkit's table: its code is not fusionkit's."""
        return name not in self.table

    def load(self, name: str) -> Loaded:
        """The object of a name; UsageError where it is unknown, or its module cannot be imported or lacks the
        object.
        """
        path = self.path(name)
        try:
            return load(path)
        except UsageError as error:
            near = difflib.get_close_matches(name.partition(":")[0], self.names(), n=1, cutoff=0.6)
            hint = f", or did you mean {near[0]!r}?" if near and name == path else ""
            raise error.at(f"{self.kind} {name!r} cannot be imported", f"{error.remedy}{hint}") from error

    def is_redefined(self, name: str) -> bool:
        """Whether the object of a name is no longer the one that :meth:`load` gives."""
        path = self.path(name)
        module, _, dotted = path.partition(":")
        found: Any = sys.modules.get(module)
        for part in dotted.split("."):
            found = getattr(found, part, None)
        return found is not None and found is not self.load(name).value

    def source(self, name: str) -> dict[str, str | None] | None:
        """The entry of a run's record for the code of a name that is not in the table; None for names of the table."""
        if not self.is_own(name):
            return None
        loaded = self.load(name)
        return {"name": name, "path": self.path(name), "module": loaded.module, "sha256": loaded.sha256}


@cache
def load(path: str) -> Loaded:
    """The object that ``MODULE:OBJECT`` names, imported once; UsageError where that is not possible."""
    name, _, dotted = path.partition(":")
    module = _imported(name)
    value: Any = module
    for part in dotted.split("."):
        if not hasattr(value, part):
            near = difflib.get_close_matches(part, dir(value), n=1, cutoff=0.5)
            raise UsageError(
                f"{name} has no {dotted!r}",
                expected=f"a class or a function of that name in {getattr(module, '__file__', name)}",
                received=dotted,
                remedy=f"did you mean {near[0]!r}?" if near else "check the name behind the colon",
            )
        value = getattr(value, part)
    defined = sys.modules.get(str(getattr(value, "__module__", name)), module)
    return Loaded(value, defined.__name__, _sha256(defined))


def _imported(name: str) -> Any:
    _see_working_folder()
    try:
        return importlib.import_module(name)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        raise UsageError(
            f"there is no module {error.name!r}" if absent else f"{name} raises an error while it is imported",  # type: ignore[attr-defined]
            expected=f"a module {name} on Python's path or in the folder {Path.cwd()}, on {platform.node()}",
            received=f"{type(error).__name__}: {' '.join(str(error).split())}",
            remedy="install its package, set PYTHONPATH, or start in its folder" if absent else "correct the module",
        ) from error


def _see_working_folder() -> None:
    """Add the working folder to the path: installed commands lack it. It goes last, so that it shadows no package."""
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109
        sys.path.append(here)


def _sha256(module: Any) -> str | None:
    try:
        return hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
    except (AttributeError, TypeError, OSError):  # defined at a prompt, or in a zip file
        return None


@cache
def _entry_points(group: str) -> Mapping[str, str]:
    """The entry points of installed packages, import paths by name."""
    return {found.name: f"{found.module}:{found.attr}" for found in importlib.metadata.entry_points(group=group)}


def changed(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The note for a user where the code behind a run has changed since the run was trained; else None."""
    if recorded.get("sha256") == now.get("sha256"):
        return None
    was, found = (str(each.get("sha256"))[:FIRST_DIGITS] for each in (recorded, now))
    return f"{now['name']} has changed since: {now['module']} was sha256 {was}…, it is {found}…"
