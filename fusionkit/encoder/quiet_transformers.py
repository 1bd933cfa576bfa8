"""Keeping the libraries' messages out of the output; fusionkit words the errors itself."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import huggingface_hub
import transformers


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the libraries' progress bars, warnings and advice inside the block."""
    library: Any = transformers.utils.logging
    loggers: tuple[Any, ...] = (library, huggingface_hub.utils.logging)
    before, bars = [logger.get_verbosity() for logger in loggers], library.is_progress_bar_enabled()
    for logger in loggers:
        logger.set_verbosity_error()
    library.disable_progress_bar()  # the hub's too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, verbosity in zip(loggers, before, strict=True):
            logger.set_verbosity(verbosity)
        if bars:
            library.enable_progress_bar()
