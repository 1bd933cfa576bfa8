"""Records in TensorBoard's, MLflow's and wandb's own files, read back by their own readers."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fusionkit.errors import StoppedError, UsageError
from fusionkit.logs import Logs, check_logs, logger
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

ENDED = 1_700_000_000.0  # seconds since 1970
SPEC = RunSpec(store="ab" * 8, task="tagging", label="slots", fusion="linear", head="crf", shots=4, lr=0.01, epochs=3)
CURVE = [
    {"epoch": 1, "loss": 2.5, "validation_score": 0.25},
    {"epoch": 2, "loss": 1.5, "validation_score": 0.5},
    {"epoch": 3, "loss": 1.25, "validation_score": 0.375},
]
FINISHED: dict[str, Any] = {
    "status": "finished", "data": "de.store", "encoder": "minilm", "rows": "words", "layers": [0, 3, 6], "metric": "f1",
    "score": 0.5, "validation_score": 0.5, "best_epoch": 2, "curve": CURVE,
    "seconds": 6.0, "epoch_seconds": [1.0, 2.5, 5.0], "head_parameters": 12,
    "scores": {"validation": {"f1": 0.5, "recall": 1.0}, "test": {"f1": 0.625, "recall": 0.75}},
    "layer_weights": [0.125, 0.25, 0.625],
}  # fmt: skip
FAILED = {"status": "failed", "error": "the loss is no number", "metric": None, "layers": [0, 3, 6]}


def keep(runs: Path, record: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A run as ``fit`` keeps it, at a known time."""
    spec = replace(SPEC, **fields)
    RunsFolder(runs).write(spec, {**record, "spec": spec.to_dict()}, {})
    os.utime(runs / spec.digest / "run.json", (ENDED, ENDED))
    found = RunsFolder(runs).record(spec)
    assert found is not None
    return found


def log(runs: Path, records: list[dict[str, Any]], *kinds: str) -> list[str]:
    """What one sweep says that logs these."""
    said: list[str] = []
    logs = Logs(kinds, runs, said.append)
    logs.catch_up(records)
    logs.close()
    return said


def test_tensorboard_reads_curve_scores_weights_and_parameters(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    records = [keep(tmp_path, FINISHED), keep(tmp_path, FAILED, lr=1.0)]
    assert "2 runs logged now" in log(tmp_path, records, "tensorboard")[0]
    folder = tmp_path / "logs" / "tensorboard"
    assert {path.name for path in folder.iterdir()} == {SPEC.digest, replace(SPEC, lr=1.0).digest}
    events = EventAccumulator(str(folder / SPEC.digest)).Reload()

    def read(tag: str) -> list[tuple[float, int, float]]:
        return [(event.wall_time, event.step, event.value) for event in events.Scalars(tag)]

    # The record holds that the run took six seconds, one of them for the last scores, and when it ended.
    assert read("loss") == [(ENDED - 5, 1, 2.5), (ENDED - 3.5, 2, 1.5), (ENDED - 1, 3, 1.25)]
    assert [value for _, _, value in read("validation/f1")] == [0.25, 0.5, 0.375]
    assert read("test/recall") == [(ENDED, 2, 0.75)]
    assert [(step, value) for _, step, value in read("layer_weight")] == [(0, 0.125), (3, 0.25), (6, 0.625)]
    told = {name: events.SummaryMetadata(name) for name in events.summary_metadata if "hparams" in name}
    text = str(told)
    assert all(word in text for word in ("fusion", "linear", "crf", "shots", "label"))
    failed = EventAccumulator(str(folder / replace(SPEC, lr=1.0).digest)).Reload()
    assert failed.Tags()["scalars"] == []
    assert "no number" in str(failed.summary_metadata)


def test_mlflow_reads_the_same_from_its_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    records = [keep(tmp_path / "runs", FINISHED), keep(tmp_path / "runs", FAILED, lr=1.0)]
    assert "2 runs logged now" in log(tmp_path / "runs", records, "mlflow")[0]
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/runs/logs/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("runs")
    [run] = client.search_runs([experiment.experiment_id], "tags.status = 'finished'")
    assert {name: run.data.params[name] for name in ("fusion", "lr", "shots", "epochs")} == {
        "fusion": "linear", "lr": "0.01", "shots": "4", "epochs": "3"
    }  # fmt: skip
    assert {name: run.data.tags[name] for name in ("task", "label", "fusion", "head", "store", "data")} == {
        "task": "tagging", "label": "slots", "fusion": "linear", "head": "crf", "store": SPEC.store, "data": "de.store"
    }  # fmt: skip
    assert run.data.metrics["test/f1"] == 0.625
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(point.timestamp, point.step, point.value) for point in history] == [
        (1000 * (ENDED - 5), 1, 2.5), (1000 * (ENDED - 3.5), 2, 1.5), (1000 * (ENDED - 1), 3, 1.25)
    ]  # fmt: skip
    assert (run.info.start_time, run.info.end_time, run.info.status) == (
        1000 * (ENDED - 6), 1000 * ENDED, "FINISHED"
    )  # fmt: skip
    [failed] = client.search_runs([experiment.experiment_id], "tags.status = 'failed'")
    assert (failed.info.status, failed.data.tags["error"]) == ("FAILED", "the loss is no number")
    # Again, with one run of which the logging was stopped half way: that one is done anew, the other is not.
    client.delete_tag(failed.info.run_id, "fusionkit.record")
    assert "1 run logged now" in log(tmp_path / "runs", records, "mlflow")[0]
    found = client.search_runs([experiment.experiment_id])
    assert len(found) == 2
    assert run.info.run_id in {each.info.run_id for each in found}
    assert failed.info.run_id not in {each.info.run_id for each in found}


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """The records of a log as LevelDB writes it, in blocks of 32 KiB, behind seven bytes of wandb's own.

    A fragment is checksum (4 bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last), data.
    """
    block, at, held = 1 << 15, 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:  # no fragment begins there
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        held += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield held
            held = b""


def key_of(item: Any) -> str:
    """The name of a value, which may stand in parts."""
    return item.key or "/".join(item.nested_key)


def test_wandb_keeps_the_same_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    records = [keep(tmp_path, FINISHED)]
    [said] = log(tmp_path, records, "wandb")
    assert "1 run logged now" in said
    assert "0 runs logged now" in log(tmp_path, records, "wandb")[0]
    from wandb.proto.wandb_internal_pb2 import Record

    [file] = (tmp_path / "logs" / "wandb" / "wandb").glob("offline-run-*/*.wandb")
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    history, tags = [], []
    for content in leveldb_records(file.read_bytes()):
        record = Record.FromString(content)
        if record.HasField("run"):
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            tags = list(record.run.tags)
        if record.HasField("history"):
            history.append({key_of(item): json.loads(item.value_json) for item in record.history.item})
        if record.HasField("summary"):
            summary |= {key_of(item): json.loads(item.value_json) for item in record.summary.update}
    assert (config["fusion"], config["shots"], config["lr"]) == ("linear", 4, 0.01)
    assert {"task:tagging", "fusion:linear", "head:crf", f"store:{SPEC.store}"} <= set(tags)
    assert [(row["_step"], row["loss"], row["validation/f1"]) for row in history] == [
        (1, 2.5, 0.25), (2, 1.5, 0.5), (3, 1.25, 0.375)
    ]  # fmt: skip
    assert (summary["test/f1"], summary["layer_weight/6"]) == (0.625, 0.625)


def test_a_run_is_logged_once_by_many_and_again_when_its_record_is_another(tmp_path: Path) -> None:
    records = [keep(tmp_path, FINISHED, data_seed=seed) for seed in range(4)]
    said: list[str] = []

    def sweep() -> None:
        said.extend(log(tmp_path, records, "tensorboard"))

    # A lock is an open file's: two in one process exclude each other as two processes do.
    threads = [threading.Thread(target=sweep) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(int(line.split()[1]) for line in said) == 4
    folder = tmp_path / "logs" / "tensorboard"
    events = {path.parent.name: path for path in folder.glob("*/events.*")}
    assert len(events) == len(list(folder.glob("*/events.*"))) == 4
    changed = keep(tmp_path, {**FINISHED, "score": 0.75}, data_seed=2)
    assert "1 run logged now" in log(tmp_path, [*records[:2], changed, records[3]], "tensorboard")[0]
    after = {path.parent.name: path for path in folder.glob("*/events.*")}
    assert {name for name in events if events[name] != after[name]} == {replace(SPEC, data_seed=2).digest}


def test_a_log_that_fails_is_told_of_once_and_the_others_go_on(tmp_path: Path) -> None:
    records = [keep(tmp_path, FINISHED, data_seed=seed) for seed in range(2)]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "wandb").write_text("a file where a folder should be")
    said = log(tmp_path, records, "wandb", "tensorboard")
    assert len(said) == 2
    assert said[0].startswith("wandb has stopped logging: ")
    assert "--log-to wandb logs what is missing" in said[0]
    assert said[1].startswith("tensorboard: 2 runs logged now")


def test_a_floor_from_a_file_of_records_which_names_no_layers_is_logged(tmp_path: Path) -> None:
    record = keep(tmp_path, {name: value for name, value in FINISHED.items() if name != "layers"}, data_seed=0)
    (said,) = log(tmp_path, [record], "tensorboard")
    assert said.startswith("tensorboard: 1 run logged now")


def test_a_server_that_is_not_there_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a connection and drops it: asked three times, where MLflow's own settings are eight."""
    asked, ended = [], threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)

        def drop() -> None:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    server.accept()[0].close()
                    asked.append(1)

        thread = threading.Thread(target=drop)
        thread.start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
        [said] = log(tmp_path, [keep(tmp_path, FINISHED, data_seed=seed) for seed in range(2)], "mlflow")
        ended.set()
        thread.join()
    assert said.startswith("mlflow has stopped logging: ")
    assert "no run is lost" in said
    assert len(asked) == 3
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_only_a_file_system_without_locks_is_logged_to_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [errno.ENOLCK, errno.EACCES]

    def refused(_: Path) -> None:
        number = numbers.pop(0)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(logger, "try_lock", refused)
    with logger._locked(tmp_path / ".wandb"):
        pass
    with pytest.raises(PermissionError), logger._locked(tmp_path / ".wandb"):
        pass
    assert not numbers


def test_a_stop_is_no_failure_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = keep(tmp_path, FINISHED)

    def stopped(*_: object) -> None:
        raise StoppedError("stopped by SIGTERM")

    monkeypatch.setattr(logger, "entry_of", stopped)
    with pytest.raises(StoppedError):
        log(tmp_path, [record], "tensorboard")


def test_a_missing_package_is_told_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(logger.KINDS, "mlflow", ("fusionkit.logs.mlflow", ("mlflow", "no_such_package")))
    with pytest.raises(UsageError, match=r"pip install 'fusionkit\[mlflow\]'") as refused:
        check_logs(["tensorboard", "mlflow"])
    assert refused.value.received == "no no_such_package"


def test_numbers_that_are_none_stay_what_they_are(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = keep(tmp_path, {**FINISHED, "scores": {"test": {"f1": math.nan}}})
    log(tmp_path, [record], "tensorboard")
    events = EventAccumulator(str(tmp_path / "logs" / "tensorboard" / SPEC.digest)).Reload()
    assert math.isnan(events.Scalars("test/f1")[0].value)
