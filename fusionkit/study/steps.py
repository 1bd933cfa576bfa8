"""The steps of a study: what each is made from, what it makes, and the work itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fusionkit.errors import UsageError

Made = Mapping[str, str]


@dataclass(frozen=True)
class Step:
    """One step; what it is made from may be known only when those before it are done.

    Attributes:
        name: ``encode sst2``, ``fit main``, ``table table1``. command: what does the same from a shell.
        source: what it is made from, as values that JSON can hold.
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
        if known is None or known["made"] != self.look(known["made"]):
            return False
        return bool(known["from"] == json.loads(json.dumps(self.source())))  # as it was read: tuples are lists there


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Put a place of the study's file in front of errors of wrong use."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"{place}: {error.what}", expected=error.expected, received=error.received, remedy=error.remedy
        ) from error
