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
from fusionkit.specs import canonical_json
from fusionkit.store.manifest import input_kind

COMPARED = ("weights", "tokenizer", "config")


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The compared parts in which two identities differ."""
    return [part for part in COMPARED if one.get(part) != other.get(part)]


def shown_identity(identity: Mapping[str, Any]) -> dict[str, str]:
    """The compared parts of an identity by name, short enough to be read."""
    told = {part: part_text(identity, part).removeprefix("sha256 ") for part in COMPARED}
    return {f"encoder {part}": text if part == "config" else text[:16] for part, text in told.items()}


def shown_states(
    encoder: Mapping[str, Any], rows: str, columns: Mapping[str, str | None], pair_as: str
) -> dict[str, str]:
    """What two stores must have in common if one head is to read both, by name.

    Args:
        encoder: its identity. columns: the roles of the source's columns.
    """
    return {
        **shown_identity(encoder),
        "rows": rows,
        "input": input_kind(columns),
        "pairs as": pair_as if columns["pair"] else "none",
    }


def refuse_other_encoder(given: Mapping[str, Any], wanted: Mapping[str, Any], what: str, remedy: str) -> None:
    """Raise EncoderError if two identities are of different encoders.

    Args:
        what: the error without its reason, like "encoder 'a' is not the one of the store".
    """
    if parts := differing(given, wanted):
        part = parts[0]
        differ = "differ" if part == "weights" else "differs"
        told = part_text(wanted, part), part_text(given, part)
        raise EncoderError(f"{what}: its {part} {differ}", expected=told[0], received=told[1], remedy=remedy)


def part_text(identity: Mapping[str, Any], part: str) -> str:
    """A compared part as text; equal parts have equal texts."""
    if part != "config":
        return f"sha256 {identity.get(part)}"
    settings = sorted(identity.get(part, {}).items())
    return ", ".join(f"{name} {canonical_json(value)}" for name, value in settings) or "the usual settings"
