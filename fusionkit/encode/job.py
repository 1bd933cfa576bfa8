"""An encoding job: what is to be encoded and where, who watches, and what was done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fusionkit.encode.plan import choose_rows, identity_of
from fusionkit.encode.publish import refuse_foreign
from fusionkit.encoder import Encoder
from fusionkit.files import disk_errors
from fusionkit.places import Place, place_errors
from fusionkit.sources import Columns, Source, prepared
from fusionkit.specs import EncodeSpec


class EncodeProgress(Protocol):
    """Is told of an encode's progress: the command line's bars, or nobody."""

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        """A stage of ``total`` units begins with ``done`` of them already there."""

    def advance(self, count: int) -> None:
        """More units of the current stage are done."""

    def say(self, line: str) -> None:
        """Something the user should know."""


class NoProgress:
    """Shows nothing."""

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        return

    def advance(self, count: int) -> None:
        return

    def say(self, line: str) -> None:
        return


@dataclass(frozen=True)
class EncodeReport:
    """What an encode did.

    Attributes:
        outcome: ``encoded``, ``resumed``, ``complete`` (nothing was left to do) or ``share`` (parts of other shares
            are missing).
        seconds, tokens: of this call. manifest: the finished store's; the plan where the outcome is ``share``.
    """

    outcome: str
    seconds: float
    tokens: int
    manifest: dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What is to be encoded, and where.

    Attributes:
        source: prepared for its columns. identity: of the store. The others: see :func:`fusionkit.encode.encode`.
    """

    source: Source
    columns: Columns
    out: Place
    spec: EncodeSpec
    encoder: Encoder
    identity: dict[str, Any]
    progress: EncodeProgress
    budget: int | None
    device: str | None


def make_job(
    source: Source,
    columns: Columns,
    out: Place,
    spec: EncodeSpec,
    encoder: Encoder,
    progress: EncodeProgress | None = None,
    budget: int | None = None,
    device: str | None = None,
) -> Job:
    """A job with its identity; reports the source's notes and creates the parent folder of ``out``.

    Raises:
        UsageError: ``out`` holds other files.
    """
    progress = progress or NoProgress()
    # The plan is renamed to this path: that fails for a link and for ".".
    if isinstance(out, Path) and (out.is_symlink() or not out.name):
        out = out.resolve()
    source, notes = prepared(source, columns)
    for note in [*source.notes, *notes]:
        progress.say(note)
    rows = choose_rows(spec.rows, columns, encoder, spec.task)
    identity = identity_of(source, columns, encoder, spec, rows)
    with place_errors(out):
        refuse_foreign(out)
    if isinstance(out, Path):
        with disk_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
    return Job(source, columns, out, spec, encoder, identity, progress, budget, device)
