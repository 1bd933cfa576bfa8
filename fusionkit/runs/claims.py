"""Which process trains which run: one locked file a run, so that several processes can share a folder of runs.

The kernel drops a claim with the process that holds it. So a claim that can be taken belongs to no living process, and
a run without a record whose claim can be taken is still to be trained.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import Counter
from pathlib import Path
from typing import IO, Any

from fusionkit.io.files import disk_errors
from fusionkit.io.locks import NO_LOCKS, holder_of, is_locked, sign, try_lock, try_lock_in
from fusionkit.runs.folder import CLAIMS, UNIT, RunsFolder, digest_of_record

SHOWN = ("task", "label", "fusion", "head", "shots", "data_seed", "lr")  # of a run that failed


def this_process() -> str:
    """The name of this process, for messages of other processes."""
    return f"process {os.getpid()} on {socket.gethostname()}"


class Claims:
    """The claims of one process on the runs of a folder; ``holder`` is the name that other processes show."""

    def __init__(self, runs: Path, holder: str) -> None:
        self._folder, self._holder = runs / CLAIMS, holder
        self._held: dict[str, IO[str]] = {}
        self._is_new = not runs.exists()

    def work(self) -> bool:
        """Whether this folder's file system knows locks; without them every claim is granted."""
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
        """Whether no other process can have this run; False on a file system without locks."""
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
        # A process that was killed between keeping a run and dropping its claim has left a file that nobody asks for.
        with contextlib.suppress(OSError):
            for left in list(self._folder.iterdir()):
                if (file := try_lock(left)) is not None:
                    self._drop(left.name, file)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
            if self._is_new:
                self._folder.parent.rmdir()

    def _drop(self, name: str, file: IO[str]) -> None:
        with file, contextlib.suppress(OSError):  # a folder that went away took the claim along
            (self._folder / name).unlink(missing_ok=True)


def runs_status(runs: RunsFolder) -> dict[str, Any]:
    """The numbers of runs that are ``finished``, ``stopped`` early by halving, or ``broken_off`` (begun, and nobody
    trains them); ``running``, the number by the process that trains them; ``failed``, with errors.
    """
    claims = runs.path / CLAIMS
    there: list[Path] = []
    with contextlib.suppress(FileNotFoundError):  # it goes with the last claim in it
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
                "error": record["error"],
            }
            for record in failed
        ],
    }
