"""Whether two encoders are the same, by the identities that stores and runs record.

weights      SHA-256 over names, shapes, dtypes and bytes of all weights
tokenizer    SHA-256 of the fast tokenizer
config       settings that the weights do not show, such as the number of heads, as far as they are not usual
revision     the commit of a hub id, None for a folder; encoders that differ in it alone are the same
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusionkit.errors import EncoderError

COMPARED = ("weights", "tokenizer", "config")


def shown_identity(identity: Mapping[str, Any]) -> dict[str, str]:
    """The compared parts, short enough to be read, by name."""
    told = {part: _whole(identity, part).removeprefix("sha256 ") for part in COMPARED}
    return {f"encoder {part}": text if part == "config" else text[:16] for part, text in told.items()}


def refuse_other_encoder(given: Mapping[str, Any], wanted: Mapping[str, Any], what: str, remedy: str) -> None:
    """Raise EncoderError if two identities are of different encoders.

    Args:
        what: the error without its reason, like "encoder 'a' is not the one of the store".
    """
    for part in COMPARED:
        ours, theirs = (_whole(identity, part) for identity in (wanted, given))
        if ours != theirs:
            differ = "differ" if part == "weights" else "differs"
            raise EncoderError(f"{what}: its {part} {differ}", expected=ours, received=theirs, remedy=remedy)


def _whole(identity: Mapping[str, Any], part: str) -> str:
    if part != "config":
        return f"sha256 {identity.get(part)}"
    settings = identity.get(part, {})
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "the usual settings"
