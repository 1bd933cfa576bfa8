"""Results on disk: a durable record and the weights of each run, and one Parquet table of them all.

RUNS/{digest}/run.json             spec, scores, curve, times, counts: written last, so it means finished
RUNS/{digest}/weights.safetensors  the best epoch's fusion and head
RUNS/{digest}/answers.safetensors  its answers on test, as far as scores need them
RUNS/{digest}/delta.safetensors    what a method trained of the encoder, where the run has one
RUNS/{digest}/state.safetensors    the state of a run in training through the encoder; removed when the run ends
RUNS/results.parquet               one row per run, rebuilt from the records
RUNS/curves.parquet                one row per epoch of a run: its digest, epoch, loss, validation_score, seconds
RUNS/.claims/{digest}              locked by the process that trains this run (runs/claims.py); removed afterwards
RUNS/logs/                         files of TensorBoard, MLflow and wandb about the runs (fusionkit/logs)
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusionkit.errors import StoreError, UsageError, first_line, unknown_name
from fusionkit.io.files import damaged, disk_errors, parse_json, read_json, write_durably, write_fields
from fusionkit.runs.ablations import ABLATION
from fusionkit.runs.record import answers_in, digest_of_record, flat_record, flat_tests, metrics_of, timed_curve
from fusionkit.specs import RunSpec
from fusionkit.statistics.answer_bytes import from_bytes, to_bytes
from fusionkit.statistics.kept_answers import RunAnswers

if TYPE_CHECKING:
    import pandas as pd

DELTA, STATE, ANSWERS = "delta.safetensors", "state.safetensors", "answers.safetensors"
RECORD, WEIGHTS, TABLE, CURVES = "run.json", "weights.safetensors", "results.parquet", "curves.parquet"
CLAIMS, LOGS = ".claims", "logs"
UNIT = "unit-"  # prefix of files in CLAIMS that belong to no run: a process trains this unit, or these rivals
REMEDY = "remove that run's folder; the command that made it trains it again"  # for a damaged record
# Columns of CURVES with their Arrow types.
CURVE = {
    "digest": "string", "epoch": "int64", "loss": "float64", "validation_score": "float64",
    "seconds": "float64", "seconds_alone": "float64",
}  # fmt: skip


class RunsFolder:
    """A folder of runs. Writing the first run makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self) -> None:
        """Refuse a folder that holds anything other than runs (UsageError)."""
        path = self.path
        try:
            theirs = path.exists() and not (path.is_dir() and (is_runs(path) or all(map(_ours, path.iterdir()))))
        except FileNotFoundError:  # another sweep that wrote nothing has just removed it
            theirs = False
        if theirs:
            raise UsageError(
                f"{path} is no folder of runs",
                expected="a new place, an empty folder or a folder that `fusionkit fit` wrote",
                received="a file" if path.is_file() else "a folder with other files",
                remedy="choose another --out; nothing was touched",
            )

    def record(self, spec: RunSpec) -> dict[str, Any] | None:
        """The record of a run, or None if it has none; StoreError for one that is damaged or cannot be read."""
        found = _read(self.path / spec.digest / RECORD)
        # With the current spec: a record lacks the fields that were added after it was written.
        return None if found is None else {**found, "spec": spec.to_dict()}

    def has(self, digest: str) -> bool:
        """Whether a run has a record. The record is not read."""
        return (self.path / digest / RECORD).is_file()

    def forget(self, spec: RunSpec) -> None:
        """Remove the record of a run, so that it is trained again, and its ablation. Its weights stay until they are
        replaced.
        """
        for name in (ABLATION, RECORD):  # an old ablation must not stand beside a new record after a kill
            (self.path / spec.digest / name).unlink(missing_ok=True)

    def sweep_out(self, spec: RunSpec) -> None:
        """Remove the half-written files of a killed run. Only the holder of its claim may call this."""
        for left in (self.path / spec.digest).glob(".*.partial"):
            left.unlink(missing_ok=True)

    def state_path(self, spec: RunSpec) -> Path:
        """Where a run in training through the encoder keeps its state."""
        return self.path / spec.digest / STATE

    def drop_state(self, spec: RunSpec) -> None:
        """Remove the state of a run that has a record."""
        if spec.is_alone:
            self.state_path(spec).unlink(missing_ok=True)

    def write(
        self,
        spec: RunSpec,
        record: dict[str, Any],
        weights: dict[str, Any],
        delta: Mapping[str, Any] | None = None,
        answers: Mapping[str, RunAnswers] | None = None,
    ) -> None:
        """Write a run: weights and answers first, then the record, which says that the run is finished. Files that a
        killed process left, and that the run does not have, are removed.

        Args:
            answers: by the name of the data whose test split they are on; ``""`` stands for the data that the record is
                scored on.
        """
        from safetensors.torch import save  # loads torch, which reading records does not need

        folder = self.path / spec.digest
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for file, given in ((WEIGHTS, weights), (DELTA, delta), (ANSWERS, answers)):
                if not given:
                    (folder / file).unlink(missing_ok=True)
            for file, tensors, digest in ((WEIGHTS, weights, "weights_sha256"), (DELTA, delta, "delta_sha256")):
                if tensors:
                    content = save({k: v.contiguous() for k, v in tensors.items()})
                    write_durably(folder / file, content)
                    record = {**record, digest: hashlib.sha256(content).hexdigest()}
            if answers:
                write_durably(folder / ANSWERS, to_bytes(_named(answers, record)))
            write_fields(folder / RECORD, record)

    def keep_answers(self, digest: str, answers: Mapping[str, RunAnswers]) -> None:
        """Write answers beside a run that was kept without them."""
        write_durably(self.path / digest / ANSWERS, to_bytes(answers))

    def answers(self, digest: str) -> dict[str, RunAnswers]:
        """A run's answers by the name of the data whose test split they are on; empty for a run that was kept without;
        StoreError for a damaged file.
        """
        path = self.path / digest / ANSWERS
        try:
            if path.is_file():
                return from_bytes(path.read_bytes())
            # A record that was taken from a file of records contains its answers.
            path = self.path / digest / RECORD
            return answers_in(_read(path) or {})
        except ValueError as error:
            raise damaged(path, "what `fusionkit fit` kept of a run's answers", str(error), REMEDY) from error

    def run_folders(self) -> list[Path]:
        """The folders of all runs that were begun."""
        return [path for path in self.path.glob("*") if path.is_dir() and _is_digest(path.name)]

    def record_files(self) -> list[Path]:
        """The files of all records. Only a folder named by a digest is a run's: copies with other names are ignored."""
        try:
            return [path for path in self.path.glob(f"*/{RECORD}") if _is_digest(path.parent.name)]
        except FileNotFoundError:  # another process made the folder, and removed it because it kept no run
            return []

    def records(self) -> list[dict[str, Any]]:
        """The records of all runs that have one, in the order they ended; UsageError if none has, StoreError if
        damaged.
        """
        if not (found := self.all_records()):
            self.refuse_empty()
        return found

    def refuse_empty(self) -> None:
        """Refuse a folder without a record (UsageError). No record is read."""
        if not self.record_files():
            raise UsageError(
                f"{self.path} holds no finished run",
                expected="a folder that `fusionkit fit --out` wrote",
                received="a path that does not exist" if not self.path.exists() else "no run's folder with a run.json",
                remedy="run `fusionkit fit` first, or check the path",
            )

    def all_records(self) -> list[dict[str, Any]]:
        """The records of all finished, stopped and failed runs, in the order they ended; empty if there are none.
        StoreError for a damaged one.
        """
        paths: list[tuple[int, Path]] = []
        for path in self.record_files():
            with contextlib.suppress(FileNotFoundError):  # another process has removed it to try a failed run again
                paths.append((path.stat().st_mtime_ns, path))
        found: list[dict[str, Any]] = []
        for _, path in sorted(paths):  # by time: the order of digests means nothing
            if (record := _read(path)) is None:
                continue
            try:
                spec = RunSpec.from_dict(record["spec"])
            except (KeyError, TypeError, UsageError) as error:
                raise damaged(path, "a run's spec", first_line(error), REMEDY) from error
            if not isinstance(record.get("status"), str):
                raise damaged(path, "a record with a status", "none", REMEDY)
            found.append({**record, "spec": spec.to_dict()})
        return found

    def readable_records(self) -> Iterator[dict[str, Any]]:
        """The records as their files have them, in any order; damaged ones are left out."""
        for path in self.record_files():
            try:
                record = read_json(path)
            except StoreError:
                continue
            yield record

    def frame(self, metric: str | None = None, each_test: bool = False) -> pd.DataFrame:
        """:meth:`rows` as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows(metric, each_test))

    def rows(self, metric: str | None = None, each_test: bool = False) -> list[dict[str, Any]]:
        """One row per run, or with ``each_test`` one per store that it was scored on: spec, scores and costs.

        ``metric`` is the score to show, None means each task's own; UsageError if no run has it.
        """
        records = self.records()
        known = {name for record in records for name in metrics_of(record, each_test)}
        if metric is not None and metric not in known:
            raise unknown_name("metric of these runs", metric, known)
        rows = (flat_tests(record, metric) if each_test else [flat_record(record, metric)] for record in records)
        return [row for found in rows for row in found]

    def write_table(self) -> None:
        """Make ``curves.parquet`` and ``results.parquet`` from the records, if there are any."""
        if not (records := self.all_records()):
            return
        import pandas as pd
        import pyarrow as pa
        from pyarrow import parquet

        curves = [{"digest": digest_of_record(record), **row} for record in records for row in timed_curve(record)]
        flat = pd.DataFrame([flat_record(record) for record in records])
        columns = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in CURVE.items()])
        for name, table in {
            CURVES: pa.Table.from_pylist(curves, schema=columns),
            TABLE: pa.Table.from_pandas(flat, preserve_index=False),
        }.items():
            sink = pa.BufferOutputStream()
            parquet.write_table(table, sink)
            write_durably(self.path / name, sink.getvalue())


def _named(answers: Mapping[str, RunAnswers], record: Mapping[str, Any]) -> dict[str, RunAnswers]:
    return {name or str(record["evaluated"]): each for name, each in answers.items()}


def is_runs(path: Path) -> bool:
    """Whether ``fit`` has kept a run in a folder."""
    return (path / TABLE).is_file() or next(path.glob(f"*/{RECORD}"), None) is not None


def is_begun(path: Path) -> bool:
    """Whether ``fit`` has begun a run in a folder, even if a full disk kept it from writing a record."""
    entries = list(path.iterdir())
    return is_runs(path) or (bool(entries) and all(map(_ours, entries)))


def _ours(path: Path) -> bool:
    # A run's folder may be the only entry and still be empty, if the process was killed.
    return path.is_dir() and (path.name in (CLAIMS, LOGS) or _is_digest(path.name))


def _is_digest(name: str) -> bool:
    return re.fullmatch("[0-9a-f]{16}", name) is not None


def _read(path: Path) -> dict[str, Any] | None:
    """A record; None where there is none, or none any more: trying a failed run again removes its record."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read", received=error.strerror, remedy="check its permissions and the disk"
        ) from error
    try:
        return parse_json(content, path)
    except StoreError as error:
        raise damaged(path, error.expected, error.received, REMEDY) from error
