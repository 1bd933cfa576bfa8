"""Which process trains which run: one locked file per run, so that several processes can share a folder of runs.

The kernel releases a claim when the process that holds it ends. So a claim that can be taken belongs to no living
process, and a run without a record whose claim can be taken still has to be trained.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import IO, Any

from fusionkit.io.files import disk_errors
from fusionkit.io.locks import NO_LOCKS, holder_of, is_locked, sign, try_lock, try_lock_in
from fusionkit.runs.folder import CLAIMS, UNIT, RunsFolder
from fusionkit.runs.record import digest_of_record

SHOWN = ("task", "label", "fusion", "head", "shots", "data_seed", "lr")  # fields that are shown of a failed run


class Claims:
    """The claims of one process on the runs of a folder; ``holder`` is the name that other processes show."""

    def __init__(self, runs: Path, holder: str) -> None:
        self._folder, self._holder = runs / CLAIMS, holder
        self._held: dict[str, IO[str]] = {}
        self._is_new = not runs.exists()

    def locks_work(self) -> bool:
        """Whether this folder's file system supports locks; without them every claim is granted."""
        probe = f"probe-{os.getpid()}"
        try:
            return not self.take(probe) or probe in self._held
        finally:
            self.close()

    def take(self, digest: str) -> bool:
        """Claim a run. False where another process, or another of this process's objects, has it."""
        if digest in self._held:
            return True
        try:
            with disk_errors(self._folder):
                if (file := try_lock_in(self._folder, digest)) is None:
                    return False
                self._held[digest] = file
                sign(file, self._holder)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        except BaseException:
            self.release(digest)
            raise
        return True

    def holds(self, digest: str) -> bool:
        """Whether this process holds a run's claim, so no other can take it; False on a file system without locks."""
        return digest in self._held

    def release(self, digest: str) -> None:
        """Give a claim up, where it is held."""
        if (file := self._held.pop(digest, None)) is not None:
            self._drop(digest, file)

    def holder(self, digest: str) -> str | None:
        """The process that has claimed a run; None where there is none or it has ended."""
        if not (path := self._folder / digest).exists():
            return None
        if self.take(digest):
            self.release(digest)
            return None
        return holder_of(path)

    def close(self) -> None:
        """Give up all claims, and remove those of processes that have ended. The folder is removed with its last claim.

        A new folder of runs in which no run was written is removed too, so that a mistake leaves nothing behind.
        """
        for digest in list(self._held):
            self.release(digest)
        # A process that was killed between keeping a run and releasing its claim leaves a file nobody else removes.
        with contextlib.suppress(OSError):
            for left in list(self._folder.iterdir()):
                with contextlib.suppress(OSError):  # a link is no claim, and stays
                    if (file := try_lock(left)) is not None:
                        self._drop(left.name, file)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
            if self._is_new:
                self._folder.parent.rmdir()

    def _drop(self, name: str, file: IO[str]) -> None:
        with file, contextlib.suppress(OSError):  # the folder, and the claim in it, may have been removed
            (self._folder / name).unlink(missing_ok=True)


def runs_status(runs: RunsFolder) -> dict[str, Any]:
    """The state of a folder's runs: the number that is ``finished``, that halving ``stopped`` early, and that is
    ``broken_off`` (begun, and no process trains them); the number ``running``, by process; those that ``failed``, with
    errors.
    """
    claims = runs.path / CLAIMS
    there: list[Path] = []
    with contextlib.suppress(FileNotFoundError):  # the folder is removed with the last claim in it
        there = sorted(claims.iterdir())
    claimed = [path for path in there if not path.name.startswith(UNIT) and is_locked(path)]
    records = runs.all_records()
    held = {path.name for path in claimed}
    kept = {path.parent.name for path in runs.record_files()}
    failed = [record for record in records if record["status"] == "failed"]
    stopped = sum(record["status"] == "stopped" for record in records)
    return {
        "path": str(runs.path),
        "finished": len(records) - len(failed) - stopped,
        "stopped": stopped,
        "broken_off": len({path.name for path in runs.run_folders()} - held - kept),
        "running": dict(Counter(map(holder_of, claimed))),
        "failed": [
            {
                "digest": digest_of_record(record),
                **{name: record["spec"][name] for name in SHOWN},
                "error": record.get("error", ""),
            }
            for record in failed
        ],
    }
