"""The work of a worker process: parts of a store that another process planned, on any machine that sees the store.

Only a path, hashes and part names cross the process boundary, no tensors. The encoder is loaded once, and the store's
arrays are opened once. A part is durable before its record is returned; a finished part is not encoded again.
"""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fusionkit.encode.batches import Part
from fusionkit.encode.part_records import PartRecord, finished_part
from fusionkit.encode.parts import PartEncoder
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.errors import EncoderError, StoreError, UsageError
from fusionkit.io.object_storage import UnansweredError
from fusionkit.io.places import Place, UnreadableError, place_errors, place_of
from fusionkit.machine.memory import keep_freed_memory
from fusionkit.specs import digest_of
from fusionkit.store.manifest import read_plan
from fusionkit.store.same_encoder import differing


@dataclass(frozen=True)
class EncodeJob:
    """The job as a worker receives it, the same for all parts.

    Attributes:
        store: its absolute path or address. plan: digest of the plan. loading: the encoder's ``loading``.
        threads: CPU threads; None leaves the process's setting.
    """

    store: str
    plan: str
    loading: dict[str, Any]
    threads: int | None = None


def worker_job(store: Place, plan: dict[str, Any], loading: dict[str, Any], threads: int | None = None) -> EncodeJob:
    """The job of a planned store, as plain values for workers."""
    return EncodeJob(str(store.resolve() if isinstance(store, Path) else store), digest_of(plan), loading, threads)


class UnfitWorkerError(StoreError):
    """A worker that can encode no part: it sees another store, or has another encoder or none."""


def do_part(job: EncodeJob, part: Part) -> dict[str, Any]:
    """Encode one part of a job in this process.

    Returns:
        its :class:`PartRecord` as plain values.

    Raises:
        UnfitWorkerError: no part can be encoded here. FusionkitError: as encoding raises it.
    """
    with place_errors(place_of(job.store)):
        return asdict(_encode_session(job).do(part))


class _EncodeSession:
    """A job in this process."""

    def __init__(self, job: EncodeJob) -> None:
        if job.threads is not None:
            torch.set_num_threads(job.threads)
        self.job, self.store = job, place_of(job.store)
        self._plan = self._read_plan()
        encoder = _encoder(job.loading)
        if differing(encoder.identity, self._plan["identity"]["encoder"]):
            raise UnfitWorkerError(
                f"another encoder {job.loading['reference']!r} on {socket.gethostname()}",
                expected="the weights and tokenizer that the store was planned with",
                received="others" if encoder.identity["revision"] is None else str(encoder.identity["revision"]),
                remedy="put the same encoder on every machine, or name a hub id with --encoder-revision",
            )
        self._refuse_versions()
        keep_freed_memory()  # each batch reuses the memory of the states freed before it
        self._parts = PartEncoder(self.store, self._plan, encoder)

    def do(self, part: Part) -> PartRecord:
        if (found := finished_part(self.store, self._plan, part)) is not None:
            return found  # written by a worker that was lost before it could report the part
        # The plan is read again before writing: the store may have been planned anew meanwhile.
        return self._parts.encode(part, check=self._read_plan)

    def _refuse_versions(self) -> None:
        """Another version may compute other states: the identity of the store names those of the plan. A build for
        another device, ``2.13.0+cpu``, is no other version.
        """
        planned: dict[str, str] = self._plan["identity"]["versions"]
        here = {name: version(name) for name in planned}
        if any(here[name].partition("+")[0] != number.partition("+")[0] for name, number in planned.items()):
            raise UnfitWorkerError(
                f"other versions of packages on {socket.gethostname()}",
                expected=", ".join(f"{name} {number}" for name, number in planned.items()),
                received=", ".join(f"{name} {number}" for name, number in here.items()),
                remedy="install the same versions on every machine",
            )

    def _read_plan(self) -> dict[str, Any]:
        try:
            plan = read_plan(self.store)
        except (UnansweredError, UnreadableError):
            raise
        except StoreError as error:
            raise self._unfit("none") from error
        if digest_of(plan) != self.job.plan:
            raise self._unfit("another")
        return plan

    def _unfit(self, received: str) -> UnfitWorkerError:
        return UnfitWorkerError(
            f"{socket.gethostname()} does not see the store that was planned at {self.store}",
            expected="its plan.json",
            received=received,
            remedy="put the store where all machines see it: a shared folder, or s3://…",
        )


# At most one of each per process: two encoders rarely fit on one GPU.
_sessions: list[_EncodeSession] = []
_encoders: list[Encoder] = []


def _encode_session(job: EncodeJob) -> _EncodeSession:
    if not _sessions or _sessions[0].job != job:
        _sessions.clear()
        _sessions.append(_EncodeSession(job))
    return _sessions[0]


def _encoder(loading: dict[str, Any]) -> Encoder:
    if not _encoders or _encoders[0].loading != loading:
        _encoders.clear()
        try:
            encoder = load_encoder(**loading)
            encoder.refuse_device()
        except (EncoderError, UsageError) as error:
            raise UnfitWorkerError(
                f"{socket.gethostname()} cannot load the encoder", received=error.what, remedy=error.remedy
            ) from error
        _encoders.append(encoder)
    return _encoders[0]
