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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusionkit.errors import StoreError, UsageError, unknown_name
from fusionkit.io.files import disk_errors, parse_json, read_json, write_durably, write_fields
from fusionkit.metrics import split_score
from fusionkit.names import FLOORS
from fusionkit.options.entry import options_of
from fusionkit.runs.task_rows import metrics_of, rows_of_tasks, scored_on, weights_of_tasks
from fusionkit.specs import OF_TASKS, RunSpec
from fusionkit.statistics.kept_answers import RunAnswers, from_bytes, from_text, to_bytes
from fusionkit.tasks import tasks_of

if TYPE_CHECKING:
    import pandas as pd

DELTA, STATE, ANSWERS = "delta.safetensors", "state.safetensors", "answers.safetensors"
RECORD, WEIGHTS, TABLE, CURVES = "run.json", "weights.safetensors", "results.parquet", "curves.parquet"
CLAIMS, LOGS = ".claims", "logs"
UNIT = "unit-"  # prefix of files in CLAIMS that belong to no run: a cluster's worker trains this unit
# Columns of CURVES with their Arrow types.
CURVE = {
    "digest": "string", "epoch": "int64", "loss": "float64", "validation_score": "float64",
    "seconds": "float64", "seconds_alone": "float64",
}  # fmt: skip
# What a run cost besides its own share of ``seconds``; records of earlier releases have none of these.
COSTS = (
    "seconds_alone", "training_flops", "prediction_flops", "peak_memory", "peak_memory_alone", "kept_bytes", "threads",
    "processes",
    "delta_bytes", "memory_weights", "memory_gradients", "memory_optimizer", "memory_activations",
)  # fmt: skip
FLAT = (
    "status", "data", "encoder", "rows", "metric", "score", "validation_score", "best_epoch", "steps",
    "fusion_parameters", "head_parameters", "encoder_parameters", "temperature", "largest_weight", "seconds",
    "trained_parameters", "evaluated", "scored_on", "init_data", "sides", *COSTS, "parameters_per_task",
    "total_parameters", "encoder_multiple",
)  # fmt: skip
CODE = ("code_length", "uniform_length")  # in bits, for a run that codes a block of an online code


class RunsFolder:
    """A folder of runs. Writing the first run makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self) -> None:
        """Refuse a folder that holds anything other than runs (UsageError)."""
        path = self.path
        if path.exists() and not (path.is_dir() and (is_runs(path) or all(map(_ours, path.iterdir())))):
            raise UsageError(
                f"{path} is no folder of runs",
                expected="a new place, an empty folder or a folder that `fusionkit fit` wrote",
                received="a file" if path.is_file() else "a folder with other files",
                remedy="choose another --out; nothing was touched",
            )

    def record(self, spec: RunSpec) -> dict[str, Any] | None:
        """The record of a run, or None if it has none; StoreError for one that is damaged or cannot be read."""
        found = _read(self.path / spec.digest / RECORD)
        # With the current spec: a record of an earlier release lacks the fields that were added later.
        return None if found is None else {**found, "spec": spec.to_dict()}

    def has(self, digest: str) -> bool:
        """Whether a run has a record. The record is not read."""
        return (self.path / digest / RECORD).is_file()

    def forget(self, spec: RunSpec) -> None:
        """Remove the record of a run, so that it is trained again. Its weights stay until they are replaced."""
        (self.path / spec.digest / RECORD).unlink(missing_ok=True)

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
        """Write a run: weights and answers first, then the record, which says that the run is finished.

        Args:
            answers: by the name of the data whose test split they are on; ``""`` stands for the data that the record is
                scored on.
        """
        from safetensors.torch import save  # loads torch, which reading records does not need

        folder = self.path / spec.digest
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
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
            raise _damaged(path, "what `fusionkit fit` kept of a run's answers", str(error)) from error

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
        """The records of all finished, stopped and failed runs, each run once, in the order they ended; empty if there
        are none. StoreError for a damaged one.
        """
        paths: list[tuple[int, Path]] = []
        for path in self.record_files():
            with contextlib.suppress(FileNotFoundError):  # another process has removed it to try a failed run again
                paths.append((path.stat().st_mtime_ns, path))
        found: dict[str, dict[str, Any]] = {}
        for _, path in sorted(paths):  # by time: the order of digests means nothing
            if (record := _read(path)) is None:
                continue
            try:
                spec = RunSpec.from_dict(record["spec"])
            except (KeyError, TypeError, UsageError) as error:
                raise _damaged(path, "a run's spec", str(error).splitlines()[0]) from error
            # An earlier release wrote a rate of 1 and not 1.0, so its folder has another name than the run has today.
            found.setdefault(spec.digest, {**record, "spec": spec.to_dict()})
        return list(found.values())

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


def answers_in(record: Mapping[str, Any]) -> dict[str, RunAnswers]:
    """The answers that a record of a file has (:mod:`fusionkit.runs.records_file`); ValueError for damaged ones."""
    return from_text(text) if isinstance(text := record.get("answers"), str) else {}


def _named(answers: Mapping[str, RunAnswers], record: Mapping[str, Any]) -> dict[str, RunAnswers]:
    return {name or str(record.get("evaluated") or record["data"]): each for name, each in answers.items()}


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
        raise _damaged(path, error.expected, error.received) from error


def _damaged(path: Path, expected: str | None, received: str | None) -> StoreError:
    # A damaged record stops every sweep that uses this folder, so the message names the file.
    remedy = "remove that run's folder; the command that made it trains it again"
    return StoreError(f"{path} is damaged", expected=expected, received=received, remedy=remedy)


def digest_of_record(record: dict[str, Any]) -> str:
    """The digest of a record's run, which is the name of its folder."""
    return RunSpec.from_dict(record["spec"]).digest


def is_floor(record: Mapping[str, Any]) -> bool:
    """Whether a record is of a floor, which has no weights."""
    return record.get("spec", {}).get("fusion") in FLOORS


def all_failed(records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether there are runs and none of them, floors aside, has a head."""
    statuses = {record["status"] for record in records if not is_floor(record)}
    return statuses == {"failed"}


def first_error(records: Iterable[Mapping[str, Any]]) -> str:
    """The first line of the error of the first failed run; empty where none failed."""
    return next((record["error"].splitlines()[0] for record in records if record["status"] == "failed"), "")


def others_of(record: dict[str, Any]) -> dict[str, Any]:
    """A record's entries about all of a run's tasks but the first, by their names: ``labels``, ``default``,
    ``layer_weights``.
    """
    # Records of earlier releases have at most one other task, always named ``slots``.
    return dict(record.get("others") or ({"slots": record["slots"]} if record.get("slots") else {}))


def task_scores(record: dict[str, Any]) -> dict[str, float | None]:
    """For a run of several tasks each task's own metric on test, by task and metric: ``topic_accuracy``."""
    scores = record.get("scores", {})
    names = list(tasks_of(record["spec"]["task"])) if others_of(record) else []
    told: dict[str, str] = {}
    for score in scores.get("validation", {}):
        if (task := split_score(score, names)[0]) is not None:
            told.setdefault(task, score)
    return {score: scores.get("test", {}).get(score) for score in told.values()}


def layer_weights_of(record: dict[str, Any]) -> dict[str, list[float] | None]:
    """The mean weight of each layer, by the column it is used for; by the task for tasks over stores of their own. None
    for a fusion without such weights.
    """
    found = [record.get("layer_weights"), *(each.get("layer_weights") for each in others_of(record).values())]
    label, tasks = record["spec"]["label"], tasks_of(record["spec"]["task"])
    names = list(tasks) if record["spec"].get("task_stores") else label.split(",") if len(found) > 1 else [label]
    return dict(zip(names, found, strict=True))


def timed_curve(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A record's epochs; none for a failed run. Each has ``seconds``, the time until that epoch's end as the run's own
    share of what was trained together, and ``seconds_alone``, scaled to the time that the run would take alone.

    Records of earlier releases have the seconds of the whole run only: these are spread evenly.
    """
    curve = record.get("curve") or []
    whole = record.get("seconds") or 0.0
    times = record.get("epoch_seconds") or [whole * number / len(curve) for number in range(1, len(curve) + 1)]
    alone = record.get("seconds_alone")
    scale = None if alone is None or not whole else alone / whole
    return [
        {**epoch, "seconds": seconds, "seconds_alone": None if scale is None else scale * seconds}
        for epoch, seconds in zip(curve, times, strict=True)
    ]


def flat_record(record: dict[str, Any], metric: str | None = None) -> dict[str, Any]:
    """A record's spec and results side by side, without curve and lists; the scores of one metric."""
    flat = {"digest": digest_of_record(record), **record["spec"], **{name: record.get(name) for name in FLAT}}
    flat["sides"] = record.get("sides", 1)  # records of earlier releases lack it
    if not flat["task_stores"]:
        known = options_of(RunSpec)  # OF_TASKS do not apply to a run over one store
        flat |= {name: None for name in OF_TASKS if flat.get(name) == known[name].default}
    else:
        flat |= weights_of_tasks(record)
    flat["evaluated"] = flat["evaluated"] or flat["data"]  # in earlier releases a run had one store
    flat |= task_scores(record)
    if record["spec"].get("mdl") is not None:
        flat |= {name: record.get("scores", {}).get("test", {}).get(name) for name in CODE}
    if metric is not None:
        scores = record.get("scores", {})
        flat |= {
            "metric": metric,
            "score": scores.get("test", {}).get(metric),
            "validation_score": scores.get("validation", {}).get(metric),
        }
    return flat | {"scored_on": scored_on(flat)}


def flat_tests(record: dict[str, Any], metric: str | None = None) -> list[dict[str, Any]]:
    """A record as :func:`flat_record` gives it: one row per store that it was scored on; for several tasks over stores
    of their own, one row per task and one for their mean.
    """
    if record["spec"].get("task_stores"):
        return rows_of_tasks(record, flat_record(record), task_scores(record), metric)
    flat = flat_record(record, metric)
    tests = record.get("tests") or {flat["evaluated"]: {flat["metric"]: flat["score"]}}
    rows = [{**flat, "evaluated": name, "score": scores.get(flat["metric"])} for name, scores in tests.items()]
    return [{**row, "scored_on": scored_on(row)} for row in rows]
