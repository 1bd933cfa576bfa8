"""The scores of a run's setting over all of its seeds, for the card of the exported run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fusionkit.runs.errors_of_means import half_over_seeds
from fusionkit.runs.folder import RunsFolder
from fusionkit.runs.summary import OF_A_SEED, SEEDS

OF_SEEDS = (*SEEDS, *OF_A_SEED)


def over_seeds(folder: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Mean, standard deviation and 95 % interval over seeds of each score, as a table of results has them, over the
    finished runs beside this one that differ from it only in their seeds; None if there is no other.

    Args:
        folder: of the run; other runs are beside it. A damaged record among them is left out.

    Returns:
        ``runs``, their number, and ``scores``: by split and score, for scores that all runs have, ``mean``, ``std``,
        ``low`` and ``high``.
    """
    found, seeds = list[dict[str, Any]](), list[tuple[int, int]]()
    for other in RunsFolder(folder.parent).readable_records():
        if other.get("status") == "finished" and _setting(other) == _setting(record):
            found.append(other["scores"])
            seeds.append((other["spec"]["data_seed"], other["spec"]["init_seed"]))
    if len(found) < 2:
        return None
    scores = {
        split: {
            name: _spread(values, seeds)
            for name in of_split
            if len(values := _values(found, split, name)) == len(found)
        }
        for split, of_split in record["scores"].items()
    }
    return {"runs": len(found), "scores": scores}


def _values(scores: list[dict[str, Any]], split: str, name: str) -> list[float]:
    """A score's values in the runs that have it: runs of an earlier release may lack one."""
    return [each[split][name] for each in scores if name in each.get(split, {})]


def _setting(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record["spec"].items() if name not in OF_SEEDS}


def _spread(values: list[float], seeds: list[tuple[int, int]]) -> dict[str, float]:
    array = np.array(values, dtype=np.float64)
    mean, half = float(array.mean()), half_over_seeds(array, [draw for draw, _ in seeds], [init for _, init in seeds])
    return {"mean": mean, "std": float(array.std(ddof=1)), "low": mean - half, "high": mean + half}
