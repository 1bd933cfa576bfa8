"""Public names of a package that are imported when they are asked for.

Importing torch takes seconds, and checking what a user wrote needs none of it. The types are imported for the type
checker alone, under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazily(package: str, names: Mapping[str, Collection[str]]) -> Callable[[str], Any]:
    """A package's ``__getattr__`` (PEP 562).

    Args:
        package: its name. names: of each of its modules the names that are imported from there.
    """
    module_of = {name: module for module, found in names.items() for name in found}

    def attribute(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module_of[name]), name)

    return attribute
