"""Logging during a sweep: each run once, whichever process trained it. An error in a log never fails a run.

RUNS/logs/{kind}/   what a logger keeps on this disk
RUNS/logs/.{kind}   locked while a process logs a run, so that two processes do not log it twice

TensorBoard and MLflow are asked whether a run is in the log. So a run that was lost there, or logged in part, is logged
again. W&B is not asked: a file per run in its folder shows that the run is logged.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from fusionkit.errors import StoppedError, UsageError, first_line
from fusionkit.io.locks import NO_LOCKS, try_lock
from fusionkit.logs.entry import Entry, entry_of
from fusionkit.plural import counted
from fusionkit.runs.folder import LOGS
from fusionkit.runs.record import digest_of_record

LOOK_SECONDS = 0.05  # between two tries of a lock, which another process holds while it logs one run


class Logger(Protocol):
    """An open log of one kind, made from its folder on this disk and the folder of runs (``open_logger``)."""

    where: str  # how to view it, for the user

    def has(self, entry: Entry) -> bool:
        """Whether exactly this record is logged completely."""
        ...

    def log(self, entry: Entry) -> None:
        """Log it, replacing what the log has of this run."""

    def close(self) -> None:
        """The sweep is over."""


KINDS = {
    "tensorboard": ("fusionkit.logs.tensorboard", ("tensorboard",)),
    "mlflow": ("fusionkit.logs.mlflow", ("mlflow", "sqlalchemy", "alembic")),
    "wandb": ("fusionkit.logs.wandb", ("wandb",)),
}


class Logs:
    """Logs (:data:`KINDS`) of one folder of runs. A logger that fails gives one message and is not used again; its runs
    are not lost.
    """

    def __init__(self, kinds: Sequence[str], runs: Path, say: Callable[[str], None]) -> None:
        self._runs, self._say = runs, say
        self._kinds = list(dict.fromkeys(kinds))
        self._open: dict[str, Logger] = {}
        self._counts = Counter[str]()
        self._seen: set[tuple[str, str, str]] = set()  # known to be logged: not asked about again

    def catch_up(self, records: Iterable[dict[str, Any]]) -> None:
        """Log those of these runs that are not logged yet, those of earlier sweeps too."""
        for record in records:
            self.log(record)

    def log(self, record: dict[str, Any]) -> None:
        for kind in list(self._kinds):
            try:
                entry = entry_of(record, self._runs / digest_of_record(record))
                self._counts[kind] += self._log(kind, entry)
            except StoppedError:
                raise
            except Exception as error:  # whatever a client, its server or the disk may raise: the run itself is kept
                self._kinds.remove(kind)
                self._say(
                    f"{kind} has stopped logging: {first_line(error)}; no run is lost: "
                    f"the same command with --log-to {kind} logs what is missing"
                )

    def close(self) -> None:
        """Report what was logged, and where the log is."""
        for kind, logger in self._open.items():
            if kind in self._kinds:
                self._say(f"{kind}: {counted(self._counts[kind], 'run')} logged now; {logger.where}")
                try:
                    logger.close()
                except Exception as error:  # as above: the runs are kept
                    self._say(f"{kind} has not closed its log: {first_line(error)}")

    def _log(self, kind: str, entry: Entry) -> bool:
        known = kind, entry.digest, entry.stamp
        if known in self._seen:
            return False
        folder = self._runs / LOGS
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f".{kind}"):
            if kind not in self._open:
                self._open[kind] = importlib.import_module(KINDS[kind][0]).open_logger(folder / kind, self._runs)
            is_new = not self._open[kind].has(entry)
            if is_new:
                self._open[kind].log(entry)
        self._seen.add(known)
        return is_new


def check_logs(kinds: Iterable[str]) -> None:
    """Raise a UsageError, before any work, if the package of a log is not installed."""
    for kind in kinds:
        if absent := [name for name in KINDS[kind][1] if importlib.util.find_spec(name) is None]:
            raise UsageError(
                f"--log-to {kind} needs a package that is not installed",
                expected=f"the packages {', '.join(KINDS[kind][1])}",
                received=f"no {', '.join(absent)}",
                remedy=f"pip install 'fusionkit[{kind}]'",
            )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for a lock and hold it; on a file system without locks, hold nothing. OSError where the file cannot be
    opened.
    """
    try:
        while (file := try_lock(path)) is None:
            time.sleep(LOOK_SECONDS)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        file = None
    with file or nullcontext():
        yield
