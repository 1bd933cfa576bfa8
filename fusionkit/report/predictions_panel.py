"""The panel of predictions as plain values: sentences once per task, predictions of each run, weights as bytes.

    byte  =  round(255 · weight),   [rows, layers] in the order of the sentences, base64

A page has at most :data:`ROWS` rows of weights, shared evenly between the runs that have any. Sentences are drawn at
random, the same ones for every run of a task. Counts are over the whole split.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusionkit.evaluation.span_errors import KINDS, count_kinds, verdicts
from fusionkit.metrics import metric_name, times_of
from fusionkit.ragged import IntArray
from fusionkit.report.figures.confusions import counted
from fusionkit.report.predictions import RunPredictions

ROWS = 50_000
MOST_EXAMPLES = 400  # examples of one run: people do not look through longer lists


def inside_of(runs: Sequence[RunPredictions], rows: int = ROWS) -> dict[str, Any]:
    """``sources``, the sentences with their gold labels; ``looks``, one entry per run with the index of its ``source``;
    and ``kinds``, the kinds of mistakes with spans.
    """
    found = [(run, *_drawn(run)) for run in runs]
    budget = _fair([int(sizes.max(initial=0)) for run, _, sizes in found if run.weights is not None], rows)
    sources: dict[str, dict[str, Any]] = {}
    told = []
    for run, order, sizes in found:
        chosen = sorted(order[: np.searchsorted(sizes, budget, side="right")].tolist())
        source = _source(run, chosen)
        key = json.dumps(source, sort_keys=True)
        sources.setdefault(key, source)
        told.append({**_told(run, chosen), "source": list(sources).index(key)})
    return {"sources": list(sources.values()), "looks": told, "kinds": list(KINDS)}


def _fair(sizes: list[int], total: int) -> int:
    """A limit for each size that keeps their sum within ``total``. Space that small ones do not need goes to the
    others.
    """
    left = total
    for number, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - number)
        if size > share:
            return share
        left -= size
    return max(sizes, default=total)


def _drawn(run: RunPredictions) -> tuple[IntArray, IntArray]:
    """At most :data:`MOST_EXAMPLES` examples in a random order, and the cumulative number of their rows."""
    order = np.random.default_rng(0).permutation(len(run.gold))[:MOST_EXAMPLES]
    sizes = np.array([max(len(tokens), 1) for tokens in run.tokens], dtype=np.int64)
    return order, np.cumsum(sizes[order])


def _source(run: RunPredictions, chosen: list[int]) -> dict[str, Any]:
    return {
        "tokens": [run.tokens[i] for i in chosen],
        "gold": [run.gold[i] for i in chosen],
        "whole": None if run.whole is None else [run.whole[i] for i in chosen],
        # Few words have no row, so only examples with such words are listed.
        "gaps": {
            str(k): np.flatnonzero(~run.has_row[i]).tolist() for k, i in enumerate(chosen) if not run.has_row[i].all()
        },
    }


def _told(run: RunPredictions, chosen: list[int]) -> dict[str, Any]:
    record = run.scored
    times = times_of(record["metric"])
    score = record["validation_score"] if run.split == "validation" or record["score"] is None else record["score"]
    wrong = sum(gold != said for gold, said in zip(run.gold, run.predicted, strict=True))
    return {
        "run": run.digest[:10],
        "task": run.task,
        "method": run.method,
        "column": run.column,
        "kind": run.kind,
        "split": run.split,
        "score": f"{metric_name(record['metric'])} {times * score:.1f}",
        "layers": list(run.layers),
        "examples": len(run.gold),
        "wrong": None if run.kind == "number" else wrong,
        "predicted": [_short(run.predicted[i]) for i in chosen],
        "weights": None if run.weights is None else _bytes(run, chosen),
        "varies": run.weights is not None and bool(np.ptp(run.weights, axis=0).max(initial=0) > 1 / 255),
        "confusion": [] if run.kind == "number" else counted(run),
        "entities": count_kinds(zip(run.gold, run.predicted, strict=True)) if run.kind == "spans" else None,
        "mistakes": [_mistakes(run, i) for i in chosen] if run.kind == "spans" else None,
    }


def _mistakes(run: RunPredictions, example: int) -> list[list[Any]]:
    """The kind of each mistake with the gold span and the predicted one, or null for either."""
    found = verdicts(run.gold[example], run.predicted[example])
    return [[KINDS.index(one.kind), one.gold, one.predicted] for one in found if one.kind != KINDS[0]]


def _bytes(run: RunPredictions, chosen: list[int]) -> str:
    assert run.weights is not None
    rows = [run.weights[run.offsets[i] : run.offsets[i + 1]] for i in chosen]
    packed = np.rint(255 * np.concatenate(rows)).clip(0, 255).astype(np.uint8) if rows else np.zeros(0, np.uint8)
    return base64.b64encode(packed.tobytes()).decode()


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
