"""Heads wherever they are: finished runs, exported folders, repositories on the hub."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fusionkit.errors import UsageError
from fusionkit.exported.config import CONFIG, WEIGHTS, open_folder
from fusionkit.exported.hub import fetched, is_hub_id
from fusionkit.fit.model.checkpoint import TrainedRun, find_run, open_run
from fusionkit.runs.folder import RECORD


def find_heads(place: str | Path) -> list[Path]:
    """The folders of the heads that a user means: runs as :func:`find_run` finds them, else an exported head.

    Args:
        place: a run, a folder of runs, the beginning of a run, an exported folder, or a hub id (``owner/name``, where
            there is no folder ``owner`` here): its files are downloaded.

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
    places: Iterable[str | Path], encoder: str | None = None, trusted: Iterable[str] = ()
) -> list[TrainedRun]:
    """Load every head that is meant, each once, in the order given.

    Args:
        encoder: where the encoder is, if the user said so. trusted: modules whose code exported heads may run.

    Raises:
        UsageError: there is no such head, or one whose encoder was a folder and nobody says where it is now.
        StoreError: a head is damaged.
    """
    folders = dict.fromkeys(folder.resolve() for place in places for folder in find_heads(place))
    found = []
    for folder in folders:
        if (folder / RECORD).is_file():
            found.append(open_run(folder))
            continue
        run, config = open_folder(folder, trusted)
        if config["encoder_kind"] == "folder" and encoder is None:
            raise UsageError(
                f"the encoder of {folder} was a folder",
                expected=f"where it is now: {run.encoder}, weights {run.encoding['encoder']['weights'][:16]}…",
                received="no encoder",
                remedy="give its folder: --encoder FOLDER, from Python encoder=FOLDER",
            )
        found.append(run)
    return found
