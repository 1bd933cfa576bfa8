"""Public names of a package that are imported when they are asked for, and imports that take less time.

Importing torch takes seconds, and checking what a user wrote needs none of it. The types are imported for the type
checker alone, under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
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
        with uncollected():
            return getattr(importlib.import_module(module_of[name]), name)

    return attribute


@contextlib.contextmanager
def uncollected(*, for_good: bool = False) -> Iterator[None]:
    """Pause the garbage collector in a block that imports modules.

    Modules make a million objects and hardly any garbage: looking for it takes a fifth of the import of torch and
    transformers.

    Args:
        for_good: the collector does not look at them later either; for the processes of commands alone, because this
            holds for all other objects there are too.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if for_good:
            gc.freeze()
        if was_on:
            gc.enable()
