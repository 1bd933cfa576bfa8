"""The tokenizer of an encoder without its weights, for reports; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

from fusionkit.encoder.quiet_transformers import quiet_transformers
from fusionkit.encoder.refusals import BUNDLED
from fusionkit.errors import EncoderError


def tokenizer_of(reference: str) -> Any:
    """The tokenizer of a bundled name, a folder or a hub id that is in the cache.

    Raises:
        EncoderError: it is not on this machine.
    """
    place = str(BUNDLED[reference]()) if reference in BUNDLED else str(Path(reference).expanduser())
    with quiet_transformers():
        try:
            return transformers.AutoTokenizer.from_pretrained(place, local_files_only=True)
        except Exception as error:  # OSError, ValueError and the library's own
            raise EncoderError(
                f"the tokenizer of {reference!r} is not on this machine", received=type(error).__name__
            ) from error
