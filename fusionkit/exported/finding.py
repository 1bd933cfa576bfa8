"""Finding heads: finished runs, exported folders, and hub repositories, downloaded into the hub's cache."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import errors, snapshot_download

from fusionkit.errors import FusionkitError, UsageError, first_line
from fusionkit.exported.config import BUNDLED, CARD, CONFIG, ENCODER, INSIDE, WEIGHTS, open_folder
from fusionkit.runs.find_run import find_run
from fusionkit.runs.folder import DELTA, RECORD

if TYPE_CHECKING:
    from fusionkit.fit.model.checkpoint import TrainedRun

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def find_heads(place: str | Path) -> list[Path]:
    """The folders of the heads that a user means: runs as :func:`find_run` finds them, else an exported head.

    Args:
        place: a run, a folder of runs, the beginning of a run, an exported folder, or a hub id (``owner/name``, if
            there is no folder ``owner`` here), whose files are downloaded.

    Raises:
        UsageError: there is no such head. FusionkitError: the hub cannot be reached.
    """
    path = Path(place).expanduser()
    if path.is_dir() and not (path / RECORD).is_file() and any((path / file).is_file() for file in (CONFIG, WEIGHTS)):
        return [path]
    if not path.exists() and is_hub_id(str(place)):
        return [fetched(str(place))]
    return find_run(path)


def open_heads(
    places: Iterable[str | Path],
    encoder: str | None = None,
    trusted: Iterable[str] = (),
    trust_encoder: bool = False,
) -> list[TrainedRun]:
    """Load the heads at these places, each once, in the order given.

    Args:
        encoder: the encoder's place, if the user gave one. trusted: modules whose code exported heads may run.
        trust_encoder: an exported head may name a folder of this machine as its encoder.

    Raises:
        UsageError: there is no such head, or its encoder is a local folder that is not trusted, and no ``encoder`` is
            given.
        StoreError: a head is damaged.
    """
    from fusionkit.fit.model.checkpoint import open_run  # loads torch

    folders = dict.fromkeys(folder.resolve() for place in places for folder in find_heads(place))
    found = []
    for folder in folders:
        is_run = (folder / RECORD).is_file()
        run, config = (open_run(folder), None) if is_run else open_folder(folder, trusted)
        if config is not None and encoder is None:
            _refuse_local(folder, run, config["encoder_kind"], trust_encoder)
        found.append(run)
    return found


def _refuse_local(folder: Path, run: TrainedRun, kind: str, trusted: bool) -> None:
    """Refuse an untrusted encoder in a folder of this machine outside the head's own folder: otherwise the author of
    the head would choose which local files are read.
    """
    place = Path(run.encoder).expanduser()
    inside = kind == INSIDE and place.resolve().is_relative_to(folder)
    local = kind not in ("bundled", "hub", INSIDE) or (place.exists() and run.encoder != BUNDLED)
    if inside or not local or (trusted and place.is_dir()):
        return
    raise UsageError(
        f"the encoder of {folder} was a folder" if kind == "folder" else f"{folder} names a local encoder",
        expected=f"where it is now: {run.encoder}, weights {run.encoding['encoder']['weights'][:16]}…",
        received="no encoder" if not place.exists() else f"{place.resolve()}, which nobody vouches for",
        remedy="give its folder: --encoder FOLDER, from Python encoder=FOLDER"
        + ("" if not place.is_dir() else "; or load what the head names: --trust-encoder, trust_encoder=True"),
    )


def is_hub_id(place: str) -> bool:
    """True for a text that can only be a hub id: ``owner/name``, with no folder ``owner`` in the working folder."""
    return HUB_ID.fullmatch(place) is not None and not Path(place).parent.exists()


def fetched(repo_id: str, **options: Any) -> Path:
    """The folder in the hub's cache with a head's files, which are downloaded if they are not there yet.

    Args:
        options: of :func:`huggingface_hub.snapshot_download`.

    Raises:
        UsageError: no such repository or revision. FusionkitError: the hub cannot be reached.
    """
    try:
        return Path(
            snapshot_download(repo_id, allow_patterns=[CONFIG, WEIGHTS, CARD, DELTA, f"{ENCODER}/*"], **options)
        )
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise UsageError(
            f"{repo_id} is no head",
            expected="a folder that `fusionkit export` wrote, or the id of a hub repository that holds one",
            received=first_line(error),
            remedy="check the path or the id",
        ) from error
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, OSError) as error:
        raise FusionkitError(
            f"cannot get the head {repo_id}",
            expected="a folder here, or a hub repository that can be reached or is in the cache",
            received=first_line(error),
            remedy="check the path or the id, and the network; files in the cache are used without one",
        ) from error
