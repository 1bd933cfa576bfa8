"""A user's own fusion, head or method in a run: the record of its code, and whether the code is still the same.

A run whose code has changed is loaded, with a note: most changes of a file do not change the class, and weights that no
longer fit are refused anyway.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fusionkit.errors import FusionkitWarning, UsageError
from fusionkit.fusions import REGISTRY as FUSIONS
from fusionkit.heads import HEADS as OUR_HEADS
from fusionkit.heads import LM_HEADS
from fusionkit.heads import REGISTRY as HEADS
from fusionkit.methods.table import REGISTRY as METHODS
from fusionkit.registry import Registry, changed
from fusionkit.specs import FROZEN, RunSpec

Sources = list[dict[str, str | None]]
SCRIPT = "__main__"  # the module of the script: in another process it is another module


def own_parts(fusion: str, head: str, method: str = FROZEN) -> list[tuple[Registry, str]]:
    """The names in a run that are not fusionkit's own, each with its registry; nothing is imported."""
    heads = [(HEADS, part) for part in head.split("+") if part not in (*OUR_HEADS, *LM_HEADS)]
    classes = ((FUSIONS, FUSIONS.split(fusion)[0]), (METHODS, METHODS.split(method)[0]))
    return [*((registry, name) for registry, name in classes if registry.is_own(name)), *heads]


def script_names(specs: Iterable[RunSpec]) -> list[str]:
    """The names in these runs whose code is in the script or notebook that runs, ``__main__:Mine``."""
    named = (name for spec in specs for _, name in own_parts(spec.fusion, spec.head, spec.method))
    return [*dict.fromkeys(name for name in named if name.partition(":")[0] == SCRIPT)]


def sources_of(spec: RunSpec) -> Sources | None:
    """The entries of a run's record for code that is not fusionkit's; UsageError where it cannot be imported."""
    found = [registry.source(name) for registry, name in own_parts(spec.fusion, spec.head, spec.method)]
    return [source for source in found if source is not None] or None


def refuse_redefined(spec: RunSpec) -> None:
    """Refuse, as UsageError, a class that was defined anew in this process, in a notebook's cell or by a reload: the
    first definition would be used on.
    """
    for registry, name in own_parts(spec.fusion, spec.head, spec.method):
        if registry.is_redefined(name):
            raise UsageError(
                f"{registry.kind} {name} was defined anew since fusionkit first used it",
                expected="one definition a process",
                received="another class of that name",
                remedy="restart Python, or give the new class another name",
            )


def source_notes(spec: RunSpec, recorded: Iterable[Mapping[str, Any]] | None) -> list[str]:
    """Notes for the user on a run's code that differs from the recorded code."""
    known = {str(source["name"]): source for source in recorded or []}
    found = {str(source["name"]): source for source in sources_of(spec) or []}
    told = [changed(known[name], now) for name, now in found.items() if name in known]
    return [note for note in told if note is not None]


def warn_of_sources(spec: RunSpec, recorded: Iterable[Mapping[str, Any]] | None) -> None:
    """Warn of a run whose code has changed; Python shows equal warnings once."""
    for note in source_notes(spec, recorded):
        warnings.warn(FusionkitWarning(f"{note}; scores and predictions may differ from training's"), stacklevel=2)


def refuse_untrusted(fusion: str, head: str, method: str, trusted: Iterable[str], place: Path) -> None:
    """Refuse, as UsageError, an import path in somebody else's record unless the user trusts the module or a package
    above it. A short name belongs to a package that the user installed, so it is trusted.
    """
    named = [name.partition(":")[0] for _, name in own_parts(fusion, head, method) if ":" in name]
    untold = [module for module in named if not any(f"{module}.".startswith(f"{one}.") for one in trusted)]
    if untold:
        raise UsageError(
            f"{place} wants to run Python code of {' and '.join(untold)}, a name that whoever exported it chose",
            expected="a fusion, a head and a method of fusionkit's, or modules that you trust by name",
            received=f"fusion {fusion!r}, head {head!r} and method {method!r}",
            remedy="look at that code; then "
            + " ".join(f"--trust-module {module}" for module in untold)
            + f", from Python trust_modules={untold!r}",
        )
