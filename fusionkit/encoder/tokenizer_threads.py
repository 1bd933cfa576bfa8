"""The threads of the tokenizers library: off during forward passes, on where nothing else computes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

VARIABLE = "TOKENIZERS_PARALLELISM"  # the library reads it at each call
OFF = "off"  # not the usual "false", which would look like a user's choice


def keep_tokenizers_serial() -> None:
    """Let tokenizers use one thread, unless the user has chosen: more would compete with torch's threads."""
    os.environ.setdefault(VARIABLE, OFF)


@contextlib.contextmanager
def parallel_tokenizers() -> Iterator[None]:
    """Let tokenizers use all cores inside the block, unless the user has chosen."""
    if os.environ.get(VARIABLE) != OFF:
        yield
        return
    os.environ[VARIABLE] = "true"
    try:
        yield
    finally:
        os.environ[VARIABLE] = OFF
