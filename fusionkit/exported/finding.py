"""Finding heads: finished runs, exported folders, and hub repositories, downloaded into the hub's cache."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import errors, snapshot_download

from fusionkit.errors import FusionkitError, UsageError, first_line
from fusionkit.exported.config import BUNDLED, CARD, CONFIG, ENCODER, INSIDE, WEIGHTS, open_folder
from fusionkit.io.files import read_json
from fusionkit.runs.find_run import find_folders, is_export
from fusionkit.runs.folder import DELTA, RECORD
from fusionkit.runs.records_file import TAKEN_FROM
from fusionkit.specs import parse_untrained

if TYPE_CHECKING:
    from fusionkit.fit.model.checkpoint import TrainedRun

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def find_heads(place: str | Path, hub: bool = True) -> dict[Path, bool]:
    """The folders of the heads that a user means, each with whether it is an export.

    Args:
        place: a run, a folder of runs, the beginning of a run, an exported folder, or a hub id (``owner/name``, if
            there is no folder ``owner`` here), whose files are downloaded. hub: it may be a hub id.

    Raises:
        UsageError: there is no such head. FusionkitError: the hub cannot be reached.
    """
    try:
        path = Path(place).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{place} begins with the home folder of an unknown user", remedy="check the path") from error
    if is_export(path):
        return {path: True}
    if hub and not path.exists() and is_hub_id(str(place)):
        return {fetched(str(place)): True}
    folders = find_folders(path)
    if len(folders) > 1:  # of one run, an error says why it cannot answer
        folders = [folder for folder in folders if _can_answer(read_json(folder / RECORD))] or folders
    return {folder: is_export(folder) for folder in folders}


def _can_answer(record: Mapping[str, Any]) -> bool:
    """Whether a run has weights and answers about texts, which heads for masked sub-tokens do not."""
    spec = record.get("spec", {})
    return TAKEN_FROM not in record and isinstance(spec, Mapping) and spec.get("task") != "mlm"


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

    heads = [(folder.resolve(), exported) for place in places for folder, exported in find_heads(place).items()]
    exports = {folder for folder, exported in heads if exported}
    found = []
    for folder in dict.fromkeys(folder for folder, _ in heads):
        if folder not in exports:
            found.append(open_run(folder))
            continue
        run, config = open_folder(folder, trusted)
        if encoder is None:
            refuse_local(run, config["encoder_kind"], trust_encoder)
        found.append(run)
    return found


def refuse_local(run: TrainedRun, kind: str, trusted: bool | None) -> None:
    """Refuse an export's encoder that is an untrusted folder of this machine outside the export: otherwise the author
    of the head would choose which local files are read.

    Args:
        kind: ``encoder_kind`` of its ``config.json``. trusted: whether the user trusts the head's choice; None if the
            caller has no option for that.

    Raises:
        UsageError: the encoder is refused.
    """
    folder, reference = run.folder.resolve(), parse_untrained(run.encoder)[0]
    place = Path(reference)
    try:
        place = place.expanduser()
        there, is_folder = place.exists(), place.is_dir()
    except (OSError, RuntimeError):  # too long for a name, or the home of no user: no hub id either
        there, is_folder, kind = False, False, "folder"
    inside = kind == INSIDE and place.resolve().is_relative_to(folder)
    local = kind not in ("bundled", "hub", INSIDE) or (there and reference != BUNDLED)
    if inside or not local or (trusted and is_folder):
        return
    trust = "; or load what the head names: --trust-encoder, trust_encoder=True"
    raise UsageError(
        f"the encoder of {folder} was a folder" if kind == "folder" else f"{folder} names a local encoder",
        expected=f"where it is now: {run.encoder}, weights {run.encoding['encoder']['weights'][:16]}…",
        received=f"{place.resolve()}, a folder that you have not named" if there else "no encoder",
        remedy="give its folder: --encoder FOLDER, from Python encoder=FOLDER"
        + (trust if is_folder and trusted is not None else ""),
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
