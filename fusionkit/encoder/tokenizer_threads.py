"""The threads of the tokenizers library: off beside forward passes, on where nothing else computes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

VARIABLE = "TOKENIZERS_PARALLELISM"  # the library reads it at each call
OFF = "off"  # not the usual "false": so a user's own choice is told from ours


def keep_tokenizers_serial() -> None:
    """Let tokenizers use one thread, as theirs would contend with torch's; unless the user has chosen."""
    os.environ.setdefault(VARIABLE, OFF)


@contextlib.contextmanager
def parallel_tokenizers() -> Iterator[None]:
    """Let tokenizers use all cores inside, unless the user has chosen."""
    if os.environ.get(VARIABLE) != OFF:
        yield
        return
    os.environ[VARIABLE] = "true"
    try:
        yield
    finally:
        os.environ[VARIABLE] = OFF
