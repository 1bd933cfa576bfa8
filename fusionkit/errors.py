"""The errors fusionkit raises for a user's mistake or a failed piece of work.

Each message says what is wrong, what was expected, what was received, and what to do. The command line prints it
without a traceback and exits with the error's exit code.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self


class FusionkitError(Exception):
    """Work that failed: exit code 1."""

    exit_code = 1

    def __init__(
        self, what: str, *, expected: str | None = None, received: str | None = None, remedy: str | None = None
    ) -> None:
        self.what, self.expected, self.received, self.remedy = what, expected, received, remedy
        given = {"expected:": expected, "received:": received, "remedy:": remedy}
        super().__init__("\n".join([what, *(f"  {name:<9} {text}" for name, text in given.items() if text)]))

    def at(self, place: str, remedy: str | None = None) -> Self:
        """The same error with a place in front of it, and with another remedy if one is given."""
        what, remedy = f"{place}: {self.what}", remedy or self.remedy
        return type(self)(what, expected=self.expected, received=self.received, remedy=remedy)


class UsageError(FusionkitError):
    """A wrong path, column, name or flag: exit code 2."""

    exit_code = 2


class DataError(FusionkitError):
    """A source whose content cannot be read in its format: exit code 1."""


class EncoderError(FusionkitError):
    """An encoder that cannot be loaded or gives no usable hidden states: exit code 1."""


class UntrustedCodeError(EncoderError):
    """An encoder that brings Python code of its own, which the user has not trusted: exit code 1."""


class StoreError(FusionkitError):
    """A store that is damaged, incomplete or of an unknown format: exit code 1."""


class StoppedError(FusionkitError):
    """Work that stopped at a safe point after SIGTERM: exit code 143, the convention of shells."""

    exit_code = 143


class IdentityError(UsageError):
    """The store at this place was made from something else: exit code 2."""


class NothingFinishedError(UsageError):
    """Runs of which none has finished, where scores are to be shown: exit code 2."""


class CannotStartError(UsageError):
    """An encoder whose upper layers cannot be computed from the stored states of the layer below: exit code 2."""


class FusionkitWarning(UserWarning):
    """A warning for the user: commands print its text alone, without a line of code."""


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Put a place in front of the usage errors of a block."""
    try:
        yield
    except UsageError as error:
        raise error.at(place) from error


def first_has_seen_nothing(encoder: str, option: str) -> UsageError:
    """The error for ``cls`` rows or pools of a decoder-only encoder."""
    return UsageError(
        f"the first token of {encoder} has seen nothing of the text: it is decoder-only",
        expected=f"{option} last (the last token has seen all of it) or mean",
        received=f"{option} cls",
        remedy=f"choose {option} last",
    )


def first_line(error: BaseException, *, kind: bool = False) -> str:
    """The first line of an error's message that is not empty, or else the name of its class.

    Args:
        kind: put the name of its class in front.
    """
    name = type(error).__name__
    line = next(filter(None, map(str.strip, str(error).splitlines())), None)
    return name if line is None else f"{name}: {line}" if kind else line


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
