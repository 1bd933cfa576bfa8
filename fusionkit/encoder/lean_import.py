"""Import transformers' models in processes of the command line, without libraries that no command uses.

``transformers.modeling_utils`` imports libraries that running an encoder never calls. They take 0.6 of the 3.4 s of a
command that encodes ten sentences:

scipy.optimize      for the loss of object detection
torch._dynamo       for ``torch.compile``; functions are marked for it, but none is compiled

A program that imports fusionkit may use these libraries, so only commands call :func:`import_models`. The tensors of
torch.distributed (0.2 s) are imported, because peft uses them without importing them.
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
    """Import torch and what every model of transformers needs; do nothing if it is imported already."""
    if MODELS[0] in sys.modules:
        return
    with uncollected(for_good=True):
        # If this fails with some release of either library, it is imported whole, which is only slower.
        with contextlib.suppress(ImportError, AttributeError, TypeError), _no_compiler():
            with _without_scipy():
                _import_all()
            # Models are first made on the meta device. The first call of an operator there marks it for the compiler.
            importlib.import_module("torch").empty(1, device="meta").normal_()
        _import_all()


def _import_all() -> None:
    for name in MODELS:
        importlib.import_module(name)


@contextlib.contextmanager
def _without_scipy() -> Iterator[None]:
    """Hide SciPy from transformers. Modules that are imported inside the block never see it."""
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
    """Replace torch._dynamo inside the block by a module whose decorators do nothing; its submodules are real."""
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
