"""What is logged of a run, by any logger: parameters, tags, a curve with times, scores.

A record holds how many seconds had gone after each epoch, and its file when the run ended. Of runs that were trained
together each has an equal share of the time, so a curve begins later than its first step was.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionkit.runs.folder import RECORD, timed_curve

TOLD = ("data", "evaluated", "encoder", "rows")
COUNTS = ("fusion_parameters", "head_parameters", "trained_parameters", "seconds", "best_epoch")


@dataclass(frozen=True)
class Entry:
    """A run.

    Attributes:
        digest: its name. stamp: changes with its record, as when a run that failed is trained again.
        name: for people. parameters: its spec's fields; those that are None are not set.
        tags: task, label, fusion, head, store, data, encoder, status and the like.
        curve: ``(epoch, when, {name: value})``, seconds since 1970. scores: ``test/f1`` and so on, and what it cost.
        layer_weights: by layer of the encoder. began, ended: seconds since 1970.
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


def entry_of(record: dict[str, Any], folder: Path) -> Entry:
    """The entry of a run.

    Args:
        record: its ``run.json``, read. folder: where that lies: ``RUNS/{digest}``.

    Raises:
        OSError: the record has gone.
    """
    path, spec, metric = folder / RECORD, record["spec"], record["metric"]
    ended, seconds = path.stat().st_mtime, record.get("seconds") or 0.0
    began = ended - seconds
    names = {"loss": "loss", f"validation/{metric}": "validation_score"}
    curve = [
        (
            int(point["epoch"]),
            began + point["seconds"],
            # Not every epoch is scored.
            {name: point[key] for name, key in names.items() if point[key] is not None},
        )
        for point in timed_curve(record)
    ]
    shots = "all of train" if spec["shots"] is None else f"{spec['shots']} shots"
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
        layer_weights=_layer_weights(record),
        began=began,
        ended=ended,
    )


def _scores(record: dict[str, Any]) -> dict[str, float]:
    found = {
        f"{split}/{name}": value
        for split, scores in (record.get("scores") or {}).items()
        for name, value in scores.items()
        if split != "validation"  # the curve's last word has this name; below, at the best epoch
    }
    best = (record.get("scores") or {}).get("validation", {})
    found |= {f"best_validation/{name}": value for name, value in best.items()}
    return found | {name: record[name] for name in COUNTS if record.get(name) is not None}


def _layer_weights(record: dict[str, Any]) -> dict[int, float]:
    weights, layers = record.get("layer_weights") or [], record["layers"]
    return dict(zip(layers, weights, strict=True)) if len(weights) == len(layers) else {}
