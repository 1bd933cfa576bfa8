"""MLflow: one MLflow run for each run, in an experiment named like the folder of runs or by MLFLOW_EXPERIMENT_NAME.

The store is MLFLOW_TRACKING_URI or, without it, RUNS/logs/mlflow/mlflow.db (SQLite).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# MLflow reports its use to its makers by default; logging a user's runs should not do that.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from fusionkit.logs.entry import Entry

DIGEST, STAMP = "fusionkit.run", "fusionkit.record"  # tags: which run, and, set last, which record of it
AT_ONCE = 1000  # metrics, parameters and tags that a store takes in one call
TRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}  # while connecting
LONGEST = 500  # characters of a parameter that every store takes


class Mlflow:
    """Logs by MLflow's client; a run without :data:`STAMP` was interrupted and is logged again."""

    def __init__(self, uri: str, name: str, artifacts: str | None) -> None:
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(name)
        self._experiment = (
            self._client.create_experiment(name, artifact_location=artifacts) if found is None else found.experiment_id
        )
        self.where = f"experiment {name!r} in {uri}"

    def has(self, entry: Entry) -> bool:
        return any(run.data.tags.get(STAMP) == entry.stamp for run in self._runs(entry))

    def log(self, entry: Entry) -> None:
        for left in self._runs(entry):
            self._client.delete_run(left.info.run_id)
        began, ended = round(1000 * entry.began), round(1000 * entry.ended)
        made = self._client.create_run(
            self._experiment, start_time=began, tags={**entry.tags, DIGEST: entry.digest}, run_name=entry.name
        )
        run, metrics = made.info.run_id, list(_metrics(entry, ended))
        parameters = [Param(name, str(value)[:LONGEST]) for name, value in entry.parameters.items()]
        self._client.log_batch(run, params=parameters, metrics=metrics[: AT_ONCE // 2])
        for at in range(AT_ONCE // 2, len(metrics), AT_ONCE):
            self._client.log_batch(run, metrics=metrics[at : at + AT_ONCE])
        failed = entry.tags["status"] == "failed"
        self._client.set_terminated(run, "FAILED" if failed else "FINISHED", end_time=ended)
        self._client.set_tag(run, STAMP, entry.stamp)

    def close(self) -> None:
        """Does nothing: each call has been sent."""

    def _runs(self, entry: Entry) -> Any:
        return self._client.search_runs([self._experiment], f"tags.`{DIGEST}` = '{entry.digest}'")


def _metrics(entry: Entry, ended: int) -> Iterator[Metric]:
    for epoch, when, values in entry.curve:
        for name, value in values.items():
            yield Metric(name, value, round(1000 * when), epoch)
    for name, value in entry.scores.items():
        yield Metric(name, value, ended, 0)
    for layer, weight in entry.layer_weights.items():
        yield Metric("layer_weight", weight, ended, layer)


@contextmanager
def _impatient() -> Iterator[None]:
    """Set fewer tries: by MLflow's own settings a sweep would wait four minutes for a server that does not exist."""
    added = {name: value for name, value in TRIES.items() if name not in os.environ}
    os.environ |= added
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def open_logger(folder: Path, runs: Path) -> Mlflow:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or runs.resolve().name
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        with _impatient():
            return Mlflow(uri, name, None)
    folder.mkdir(parents=True, exist_ok=True)
    for noisy in ("mlflow.store.db.utils", "alembic"):  # they log forty lines for a new database
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return Mlflow(f"sqlite:///{folder.resolve() / 'mlflow.db'}", name, (folder.resolve() / "artifacts").as_uri())
