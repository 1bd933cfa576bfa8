"""The import of transformers' models for the processes of the command line: without what no command uses.

``transformers.modeling_utils`` imports libraries that running an encoder never calls. They take 0.6 s of the 3.4 of a
command that encodes ten sentences:

scipy.optimize      the loss of object detection
torch._dynamo       ``torch.compile``; functions are marked for it, and none is compiled

A program that imports fusionkit may use all that, so only commands call :func:`import_models`. Tensors of
torch.distributed, 0.2 s, are imported: peft asks for them without importing them itself.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from fusionkit.lazy import uncollected

MODELS = ("transformers.modeling_utils", "transformers.masking_utils")  # nearly every model imports both
COMPILER = "torch._dynamo"
ASKED = "is_scipy_available"  # transformers' function; it guards the import


def import_models() -> None:
    """Import torch and what every model of transformers needs; nothing where that is done already."""
    if MODELS[0] in sys.modules:
        return
    with uncollected(for_good=True):
        # A release of either library in which this fails is imported whole: it is slower, and nothing else.
        with contextlib.suppress(ImportError, AttributeError, TypeError), _no_compiler():
            with _without_scipy():
                _import_all()
            # Models are made without memory first. The first call of an operator there marks it.
            importlib.import_module("torch").empty(1, device="meta").normal_()
        _import_all()


def _import_all() -> None:
    for name in MODELS:
        importlib.import_module(name)


@contextlib.contextmanager
def _without_scipy() -> Iterator[None]:
    """Let transformers find no SciPy. Modules that are imported inside the block keep this answer."""
    places = [importlib.import_module(f"transformers.{place}") for place in ("utils", "utils.import_utils")]
    true = [(place, getattr(place, ASKED)) for place in places]
    for place, _ in true:
        setattr(place, ASKED, lambda: False)
    try:
        yield
    finally:
        for place, function in true:
            setattr(place, ASKED, function)


@contextlib.contextmanager
def _no_compiler() -> Iterator[None]:
    """Let a module whose decorators mark nothing stand for torch._dynamo inside the block; its own modules are real."""
    package, _, folder = COMPILER.rpartition(".")
    places = [f"{place}/{folder}" for place in importlib.import_module(package).__path__]
    if COMPILER in sys.modules:
        yield
        return
    sys.modules[COMPILER] = _Unmarking(COMPILER, places)
    try:
        yield
    finally:
        del sys.modules[COMPILER]


class _Unmarking(ModuleType):
    def __init__(self, name: str, places: list[str]) -> None:
        super().__init__(name)
        self.__path__ = places

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _unmarked


def _unmarked(function: Callable[..., Any] | None = None, *_: Any, **options: Any) -> Callable[..., Any]:
    return _unmarked if function is None else function
