"""The runs that a user means by a path; loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fusionkit.errors import NothingFinishedError, UsageError
from fusionkit.io.files import read_json
from fusionkit.runs.folder import RECORD, RunsFolder
from fusionkit.runs.record import is_floor
from fusionkit.specs import is_plain

EXPORTED = ("config.json", "model.safetensors")  # files of an exported head; a run has neither


def is_export(folder: Path) -> bool:
    """True for the folder of an exported head, also of a damaged one, and also with a ``run.json`` in it: that must not
    make a downloaded head a run, because what a run names is trusted.
    """
    return any((folder / file).is_file() for file in EXPORTED)


def find_run(place: str | Path) -> list[Path]:
    """The finished runs that a user means by a run's folder, a folder of runs, or the beginning of a run's folder.

    Raises:
        UsageError: there is no such run, the beginning fits several, or it is an exported head.
    """
    path = Path(place).expanduser()
    found = [path] if is_export(path) else find_folders(path)
    if (export := next(filter(is_export, found), None)) is not None:
        raise UsageError(
            f"{export} is an exported head",
            expected="a run that `fusionkit fit` wrote",
            received=f"a folder with {' or '.join(EXPORTED)}",
            remedy="name the run that it was exported from",
        )
    return found


def find_folders(path: Path) -> list[Path]:
    """The folders of :func:`find_run`; those of exported heads with a ``run.json`` are among them."""
    if (path / RECORD).is_file():
        return [path]
    if path.is_dir():
        # Failed runs, stopped runs and floors have a record and no weights; runs on control labels do not predict the
        # task.
        records = {file.parent: read_json(file) for file in sorted(RunsFolder(path).record_files())}
        found = [
            folder
            for folder, record in records.items()
            if record.get("status") == "finished" and not is_floor(record) and _learns_the_task(record.get("spec", {}))
        ]
    else:
        files = sorted(RunsFolder(path.parent).record_files()) if len(path.name) >= 4 else []
        found = [file.parent for file in files if file.parent.name.startswith(path.name)]
        if len(found) > 1:
            names = ", ".join(folder.name for folder in found)
            raise UsageError(f"{path} fits {len(found)} runs", received=names, remedy="give more of its name")
    if not found:
        there = "folder without one" if path.is_dir() else "file" if path.exists() else "path that does not exist"
        raise NothingFinishedError(
            f"{path} holds no finished run",
            expected="RUNS/DIGEST or the beginning of one, or a folder that `fusionkit fit --out` wrote",
            received=f"a {there}",
            remedy="check the path, or run `fusionkit fit` first",
        )
    return found


def _learns_the_task(spec: object) -> bool:
    return isinstance(spec, Mapping) and is_plain(spec)
