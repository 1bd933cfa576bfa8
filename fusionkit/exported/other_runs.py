"""What the runs beside a run say on the card of its exported head: the scores over all of its seeds, and the floors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusionkit.fit.sweep.floors import SHARED
from fusionkit.runs.errors_of_means import half_over_seeds
from fusionkit.runs.folder import RunsFolder
from fusionkit.runs.record import is_floor
from fusionkit.runs.summary import OF_A_SEED, SEEDS

OF_SEEDS = (*SEEDS, *OF_A_SEED)


def scores_of_others(folder: Path, record: Mapping[str, Any]) -> dict[str, dict[str, Any] | None]:
    """Scores of the finished runs beside a run: those that differ from it only in their seeds, and the floors.

    Args:
        folder: of the run; other runs are beside it. An unfinished or damaged record among them is left out.

    Returns:
        ``over_seeds``: ``runs``, their number with this run, and ``scores``: by split and score, for scores that all
        runs have, ``mean``, ``std`` and the 95 % interval, ``low`` and ``high``, as a table of results has them; None
        if this run is the only one. ``floors``: the scores of the floors on this run's draw, by name; None without one.
    """
    runs, floors = list[Mapping[str, Any]](), dict[str, Any]()
    for other in filter(_is_whole, RunsFolder(folder.parent).readable_records()):
        if is_floor(other) and _draw(other) == _draw(record):
            floors[other["spec"]["fusion"]] = other["scores"]
        elif _setting(other) == _setting(record):
            runs.append(other)
    return {
        "over_seeds": _over_seeds(sorted(runs, key=_seeds), record["scores"]) if len(runs) > 1 else None,
        "floors": dict(sorted(floors.items())) or None,
    }


def _is_whole(record: Mapping[str, Any]) -> bool:
    return record.get("status") == "finished" and all(isinstance(record.get(name), dict) for name in ("spec", "scores"))


def _over_seeds(runs: Sequence[Mapping[str, Any]], scores: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    seeds = [_seeds(run) for run in runs]
    return {
        "runs": len(runs),
        "scores": {
            split: {
                name: _spread(values, seeds)
                for name in of_split
                if len(values := _values(runs, split, name)) == len(runs)
            }
            for split, of_split in scores.items()
        },
    }


def _values(runs: Sequence[Mapping[str, Any]], split: str, name: str) -> list[float]:
    """A score's values in the runs that have it."""
    return [run["scores"][split][name] for run in runs if name in run["scores"].get(split, {})]


def _spread(values: list[float], seeds: list[tuple[int, int]]) -> dict[str, float]:
    array = np.array(values, dtype=np.float64)
    mean, half = float(array.mean()), half_over_seeds(array, [draw for draw, _ in seeds], [init for _, init in seeds])
    return {"mean": mean, "std": float(array.std(ddof=1)), "low": mean - half, "high": mean + half}


def _seeds(record: Mapping[str, Any]) -> tuple[int, int]:
    return record["spec"]["data_seed"], record["spec"]["init_seed"]


def _setting(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record["spec"].items() if name not in OF_SEEDS}


def _draw(record: Mapping[str, Any]) -> list[Any]:
    return [record["spec"].get(name) for name in SHARED]
