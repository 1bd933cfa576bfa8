"""The names that a user may give for an encoder; imports no torch."""

from __future__ import annotations

from pathlib import Path

from fusionkit.bundled import minilm_folder
from fusionkit.errors import UsageError, unknown_name

BUNDLED = {"minilm": minilm_folder}
CHOICES = "'minilm', a folder with config.json, model.safetensors and tokenizer.json, or a hub id"


def refuse_misspelt(reference: str, path: Path) -> None:
    """Refuse a file, or a misspelt bundled name, before any request to the hub."""
    if path.exists():
        raise UsageError(
            f"encoder {reference!r} is a file", expected=CHOICES, remedy="give the folder that the model was saved to"
        )
    near = unknown_name("encoder", reference, BUNDLED).remedy or ""
    if "/" not in reference and near.startswith("did you mean"):
        raise UsageError(f"unknown encoder {reference!r}", expected=CHOICES, received=reference, remedy=near)


def encoder_place(reference: str, revision: str | None) -> str:
    """The folder of an encoder, or its hub id.

    Raises:
        UsageError: a bundled name is misspelt, a file is given, or a revision of a folder. EncoderError: the bundled
            encoder is not installed.
    """
    if reference not in BUNDLED:
        place = Path(reference).expanduser()
        if not place.is_dir():
            refuse_misspelt(reference, place)
            return reference
    if revision is not None:
        raise UsageError(
            f"encoder {reference!r} has no revisions",
            expected="a revision with a hub id",
            received=revision,
            remedy="leave the revision out, or give the hub id",
        )
    return str(BUNDLED[reference]()) if reference in BUNDLED else str(place)
