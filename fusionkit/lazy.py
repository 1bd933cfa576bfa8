"""Public names of a package that are imported on first use, and faster imports.

Importing torch takes seconds, and checking a user's input does not need it. Under ``TYPE_CHECKING`` the types are
imported for the type checker only.
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
        package: its name. names: for each module the names that are imported from it.
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

    An import makes a million objects and hardly any garbage: the collector takes a fifth of the time to import torch
    and transformers.

    Args:
        for_good: exclude the new objects from later collections too. This excludes every object that exists then, so
            only the processes of commands use it.
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
