"""A study's folder: the places of its products, and ``study.json``, which records the inputs and outputs of each step.

    WORK/stores/NAME.store     WORK/sweeps/NAME.yaml   WORK/runs/NAME      WORK/tables/NAME.md, .csv, .tex
    WORK/figures/NAME.*        WORK/report.html        WORK/study.json     WORK/.study.lock

A step is done if its inputs are those that were recorded and its outputs are still there. Both are compared by
content; times of files are not used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fusionkit.errors import StoreError, UsageError
from fusionkit.io.files import damaged, disk_errors, read_json, sha256_of, write_json
from fusionkit.io.locks import NO_LOCKS, holder_of, sign, this_process, try_lock_in
from fusionkit.specs import canonical_json
from fusionkit.study.steps import Made, Step

LEDGER, LOCK = "study.json", ".study.lock"
FORMAT, VERSION = "fusionkit study", 1
# What a study makes there; a folder with anything else and without study.json is not a study's.
OURS = ("stores", "sweeps", "runs", "tables", "figures", "report.html", LEDGER, LOCK)


@dataclass(frozen=True)
class StudyFolder:
    path: Path

    def store(self, source: str) -> Path:
        return self.path / "stores" / f"{source}.store"

    def runs(self, sweep: str) -> Path:
        return self.path / "runs" / sweep

    def sweep(self, name: str) -> Path:
        return self.path / "sweeps" / f"{name}.yaml"

    def table(self, comparison: str, suffix: str) -> Path:
        return self.path / "tables" / f"{comparison}.{suffix}"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def name(self, path: Path) -> str:
        """A path as it is written in ``study.json``."""
        return path.relative_to(self.path).as_posix()

    def contents(self, names: Iterable[str]) -> dict[str, str]:
        """The digests of the files among these that exist, by their names in ``study.json``."""
        return {name: content_of(self.path / name) for name in names if (self.path / name).is_file()}

    def check(self) -> None:
        """Raise UsageError for a folder that holds files of something else."""
        path, ledger = self.path, self.path / LEDGER
        others = [each.name for each in path.iterdir() if each.name not in OURS] if path.is_dir() else []
        known = read_json(ledger) if ledger.is_file() else None
        if path.is_file() or (others and known is None) or (known is not None and known.get("format") != FORMAT):
            there = f"a folder with {min(others)}" if others else "a file"
            raise UsageError(
                f"{path} is no folder of a study",
                expected="a new place, an empty folder or one that `fusionkit run` wrote",
                received=there if known is None else f"a {LEDGER} of something else",
                remedy="choose another --out; nothing was touched",
            )
        if known is not None and known.get("version") != VERSION:
            raise StoreError(
                f"{ledger} is of another format",
                expected=f"{FORMAT} version {VERSION}",
                received=f"{FORMAT} version {known.get('version')}",
                remedy="run it with the fusionkit that wrote it, or choose another --out",
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for this process; if nothing was made in it, it is left as it was.

        Raises:
            UsageError: another process holds it.
        """
        new = not self.path.exists()
        try:
            with disk_errors(self.path):
                file = try_lock_in(self.path, LOCK)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            yield  # a file system without locks: stores and runs are written safely anyway
            return
        if file is None:
            raise UsageError(
                f"another `fusionkit run` works in {self.path}",
                received=holder_of(self.path / LOCK),
                remedy="wait for it, or choose another --out",
            )
        with file:
            sign(file, this_process())
            try:
                yield
            finally:
                with suppress(OSError):
                    if [each.name for each in self.path.iterdir()] == [LOCK]:
                        (self.path / LOCK).unlink()
                        if new:
                            self.path.rmdir()


class Ledger:
    """``study.json``: for each step its inputs, its outputs, its command and its time."""

    def __init__(self, work: StudyFolder) -> None:
        self._path = work.path / LEDGER
        found = read_json(self._path) if self._path.is_file() else {}
        self._steps: dict[str, Any] = found.get("steps", {})
        if not isinstance(self._steps, dict) or not all(isinstance(each, dict) for each in self._steps.values()):
            remedy = "remove the file: each step is then looked at anew"
            raise damaged(self._path, "a step's entry by its name", "other values", remedy)
        self._head = {key: value for key, value in found.items() if key != "steps"}

    def begin(self, command: str, study: Mapping[str, Any]) -> None:
        """Record the study and the command that work in the folder."""
        self._head = {"format": FORMAT, "version": VERSION, "command": command, "study": dict(study)}
        self._write()

    def step(self, name: str) -> dict[str, Any] | None:
        """The entry of a step."""
        return self._steps.get(name)

    def keep(self, step: Step, source: Mapping[str, Any], made: Made, seconds: float) -> None:
        """Record a finished step; its entry becomes the last one. ``source`` is what it was made from."""
        self._steps.pop(step.name, None)
        self._steps[step.name] = {
            "command": step.command,
            "seconds": round(seconds, 3),
            "fusionkit": version("fusionkit"),
            **step.more(),
            "from": dict(source),
            "made": dict(made),
        }
        self._write()

    def _write(self) -> None:
        write_json(self._path, {**self._head, "steps": self._steps})


def content_of(path: Path) -> str:
    """SHA-256 of a file's bytes, or of the names and bytes of all files below a folder."""
    if path.is_file():
        return sha256_of(path)
    below = sorted(each for each in path.rglob("*") if each.is_file())
    told = {each.relative_to(path).as_posix(): content_of(each) for each in below}
    return hashlib.sha256(canonical_json(told).encode()).hexdigest()
