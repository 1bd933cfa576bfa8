"""A share of a store's training examples, as a user writes it: ``5%``, ``200``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusionkit.errors import UsageError

if TYPE_CHECKING:
    from fusionkit.store import Store

WRITTEN = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+)(?P<percent>%?)")


@dataclass(frozen=True)
class Share:
    """Some of a store's labelled training examples.

    Attributes:
        part: ``5%`` or a number of examples like ``200``, in canonical spelling; None is all.
    """

    store: Store
    part: str | None = None

    def count(self, examples: int) -> int:
        """The share's number of examples out of ``examples``; a percentage is rounded, to at least 1. UsageError if the
        share asks for more than ``examples``.
        """
        if self.part is None:
            return examples
        if self.part.endswith("%"):
            return max(round(examples * float(self.part[:-1]) / 100), 1)
        if (wanted := int(self.part)) > examples:
            raise UsageError(
                f"{self.store.path} has fewer training examples than the share of it",
                expected=f"at most {examples:,}",
                received=f"{self.store.path}:{self.part}",
                remedy="choose a smaller share, or leave it out for all of them",
            )
        return wanted

    def suffix(self) -> str:
        """The text after the store's name: ``:5%``, or nothing."""
        return "" if self.part is None else f":{self.part}"


def parse_share(text: str) -> str | None:
    """A share in canonical spelling, ``5%`` or ``200``; None for ``100%``. UsageError if the text is no share."""
    match = WRITTEN.fullmatch(text)
    number, percent = (float(match["number"]), bool(match["percent"])) if match else (0.0, False)
    if not (0 < number <= 100 if percent else number >= 1 and number.is_integer()):
        raise UsageError(
            f"no share of a store: {text}",
            expected="a percentage above 0, at most 100, like 5%, or a number of examples like 200",
            received=text,
            remedy="write STORE:5% or STORE:200",
        )
    if percent:
        return None if number == 100 else f"{number:.12g}%"
    return str(int(number))
