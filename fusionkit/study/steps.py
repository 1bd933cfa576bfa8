"""The steps of a study: what each is made from, what it makes, and the work itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Made = Mapping[str, str]


@dataclass(frozen=True)
class Step:
    """One step; what it is made from may be known only when those before it are done.

    Attributes:
        name: ``encode sst2``, ``fit main``, ``table table1``. command: what does the same from a shell.
        source: what it is made from, as plain values.
        look: what is there, given what was made: contents by name.
        make: does it, and gives what it made. It goes on with what an interrupted one left.
        more: further facts for ``study.json``.
    """

    name: str
    command: str
    source: Callable[[], dict[str, Any]]
    look: Callable[[Made], Made]
    make: Callable[[], Made]
    more: Callable[[], dict[str, Any]] = dict

    def is_done(self, known: Mapping[str, Any] | None) -> bool:
        """Whether it is as ``study.json`` has it.

        Args:
            known: its entry there.
        """
        return known is not None and known["made"] == self.look(known["made"]) and known["from"] == self.source()
