"""The values that every logger logs of a run: parameters, tags, a curve with times, scores.

A record has the seconds that had passed after each epoch, and its file's time is the end of the run. Runs that were
trained together each count a share of the time, so a curve begins later than its first step.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionkit.plural import counted
from fusionkit.runs.folder import RECORD
from fusionkit.runs.record import timed_curve

TOLD = ("data", "evaluated", "encoder", "rows")
COUNTS = ("fusion_parameters", "head_parameters", "trained_parameters", "seconds", "seconds_alone", "best_epoch")


@dataclass(frozen=True)
class Entry:
    """A run.

    Attributes:
        digest: its name. stamp: a hash of its record; it changes when a failed run is trained again.
        name: for people. parameters: its spec's fields that are set. tags: task, label, data, encoder, status, …
        curve: ``(epoch, when, {name: value})``. scores: ``test/f1`` and so on, and the costs.
        layer_weights: by layer of the encoder. began, ended, and ``when`` above: seconds since 1970.
    """

    digest: str
    stamp: str
    name: str
    parameters: dict[str, Any]
    tags: dict[str, str]
    curve: list[tuple[int, float, dict[str, float]]]
    scores: dict[str, float]
    layer_weights: dict[int, float]
    began: float
    ended: float

    def is_stamped(self, file: Path) -> bool:
        """Whether a file says that exactly this record is logged."""
        return file.is_file() and file.read_text(encoding="utf-8") == self.stamp


def entry_of(record: dict[str, Any], folder: Path) -> Entry:
    """The entry of a run, from the ``run.json`` in its folder ``RUNS/{digest}``; OSError if that is gone."""
    path, spec, metric = folder / RECORD, record["spec"], record["metric"]
    ended, seconds = path.stat().st_mtime, record.get("seconds") or 0.0
    began = ended - seconds
    names = {"loss": "loss", f"validation/{metric}": "validation_score"}
    curve = []
    for point in timed_curve(record):  # not every epoch is scored
        values = {name: point[key] for name, key in names.items() if point[key] is not None}
        curve.append((int(point["epoch"]), began + point["seconds"], values))
    # A file of records leaves out what is empty: a floor reads no layer.
    weights, layers = record.get("layer_weights") or [], record.get("layers") or []
    shots = "all of train" if spec["shots"] is None else counted(spec["shots"], "shot")
    tags = {name: str(spec[name]) for name in ("task", "label", "fusion", "head", "store")}
    tags |= {name: str(record[name]) for name in TOLD if record.get(name) is not None}
    tags |= {"status": record["status"]} | ({"error": record["error"]} if record.get("error") else {})
    return Entry(
        digest=folder.name,
        stamp=hashlib.sha256(path.read_bytes()).hexdigest()[:16],
        name=f"{spec['label']} {spec['fusion']} {shots} lr {spec['lr']:g} seed {spec['data_seed']}",
        parameters={name: value for name, value in spec.items() if value is not None},
        tags=tags,
        curve=curve,
        scores=_scores(record),
        layer_weights=dict(zip(layers, weights, strict=True)) if len(weights) == len(layers) else {},
        began=began,
        ended=ended,
    )


def _scores(record: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for split, scores in (record.get("scores") or {}).items():
        # "validation/…" is the name of the curve; this is its value at the best epoch.
        shown = "best_validation" if split == "validation" else split
        found |= {f"{shown}/{name}": value for name, value in scores.items()}
    return found | {name: record[name] for name in COUNTS if record.get(name) is not None}
