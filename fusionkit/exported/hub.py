"""Heads on the model hub: their files brought into the hub's own cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from fusionkit.errors import FusionkitError, UsageError
from fusionkit.exported.config import CARD, CONFIG, WEIGHTS

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(place: str) -> bool:
    """True for what can only be a hub id: ``owner/name``, with no ``owner`` here whose file ``name`` could be."""
    return HUB_ID.fullmatch(place) is not None and not Path(place).parent.exists()


def fetched(repo_id: str, **options: Any) -> Path:
    """The folder in the hub's cache that holds a head's files, downloaded where they are not there yet.

    Args:
        options: of :func:`huggingface_hub.snapshot_download`.

    Raises:
        UsageError: no such repository or revision. FusionkitError: the hub cannot be reached.
    """
    try:
        return Path(snapshot_download(repo_id, allow_patterns=[CONFIG, WEIGHTS, CARD], **options))
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise UsageError(
            f"{repo_id} is no head",
            expected="a folder that `fusionkit export` wrote, or the id of a hub repository that holds one",
            received=_first_line(error),
            remedy="check the path or the id",
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise FusionkitError(
            f"cannot get the head {repo_id}",
            expected="a folder here, or a hub repository that can be reached or is in the cache",
            received=_first_line(error),
            remedy="check the path or the id, and the network; files in the cache are used without one",
        ) from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
