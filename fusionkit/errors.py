"""The errors fusionkit raises for a user's mistake or a failed piece of work.

Each message says what is wrong, what was expected, what was received, and what to do. The command line prints it
without a traceback and exits with the error's exit code.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FusionkitError(Exception):
    """Work that failed: exit code 1."""

    exit_code = 1

    def __init__(
        self, what: str, *, expected: str | None = None, received: str | None = None, remedy: str | None = None
    ) -> None:
        self.what, self.expected, self.received, self.remedy = what, expected, received, remedy
        given = {"expected:": expected, "received:": received, "remedy:": remedy}
        super().__init__("\n".join([what, *(f"  {name:<9} {text}" for name, text in given.items() if text)]))


class UsageError(FusionkitError):
    """A wrong path, column, name or flag: exit code 2."""

    exit_code = 2


class DataError(FusionkitError):
    """A source whose content cannot be read in its format: exit code 1."""


class EncoderError(FusionkitError):
    """An encoder that cannot be loaded or gives no usable hidden states: exit code 1."""


class StoreError(FusionkitError):
    """A store that is damaged, incomplete or of an unknown format: exit code 1."""


class StoppedError(FusionkitError):
    """Work that stopped at a safe point after SIGTERM: exit code 143, the convention of shells."""

    exit_code = 143


class IdentityError(UsageError):
    """The store at this place was made from something else: exit code 2."""


class CannotStartError(UsageError):
    """An encoder whose upper layers cannot be computed from the stored states of the layer below: exit code 2."""


class SourceWarning(UserWarning):
    """A fusion or head that is not fusionkit's is imported from a file that has changed since the run was trained."""


def first_has_seen_nothing(encoder: str, option: str) -> UsageError:
    """The error for ``cls`` rows or pools of a decoder-only encoder."""
    return UsageError(
        f"the first token of {encoder} has seen nothing of the text: it is decoder-only",
        expected=f"{option} last (the last token has seen all of it) or mean",
        received=f"{option} cls",
        remedy=f"choose {option} last",
    )


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a misspelt name: lists the choices and suggests the nearest one."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    return UsageError(
        f"unknown {kind} {name!r}",
        expected="one of " + ", ".join(choices),
        received=name,
        remedy=f"did you mean {near[0]!r}?" if near else "choose one of those above",
    )
