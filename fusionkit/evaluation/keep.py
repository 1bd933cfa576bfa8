"""Adds answers on a store's test split to runs that were kept without them, for comparisons over test examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusionkit.errors import StoreError, UsageError
from fusionkit.evaluation.answers import LabelledExamples, RunEvaluation
from fusionkit.io.files import read_json
from fusionkit.runs.find_run import is_export
from fusionkit.runs.folder import RECORD, RunsFolder
from fusionkit.runs.record import scored_stores
from fusionkit.runs.shown_split import TEST


def keep_answers(found: Sequence[RunEvaluation]) -> int:
    """Write runs' answers on a test split beside the runs; returns how many runs had none on it before.

    Raises:
        UsageError: another split than test, a head that is in no folder of runs, or a run of several tasks over stores
            of their own.
        StoreError: a score is not the recorded one. The runs before it are kept.
    """
    kept = 0
    for each in found:
        folder = each.run.folder
        if each.run.apart:
            raise UsageError(
                "answers of several tasks over stores of their own are kept when they are trained",
                received=folder.name,
                remedy="leave --keep out: `fusionkit results --over both` finds them",
            )
        if each.data.split != TEST:
            raise UsageError(
                "answers are kept of the test split alone",
                received=each.data.split,
                remedy="leave --keep out, or evaluate on a store with a test split",
            )
        if is_export(folder):
            raise UsageError(
                f"{folder} is no run",
                expected="runs in the folder that `fusionkit fit --out` wrote",
                remedy="leave --keep out: an exported head has no table of results",
            )
        record = read_json(folder / RECORD)
        name = _name_in(record, each.data)
        recorded = record.get("tests", {}).get(name) or record.get("scores", {}).get(TEST, {})
        if not recorded:
            raise StoreError(
                f"the run {folder.name} has no score on {name} to compare its answers with",
                expected="a run that was scored on this data when it was trained",
                received="a record without that score",
                remedy="leave --keep out",
            )
        if score := each.kept.unlike(recorded):
            raise StoreError(
                f"the run {folder.name} does not score on {name} as it did when it was trained",
                expected=f"{score} {recorded[score]!r}",
                received=repr(each.scores.get(score)),
                remedy="evaluate over the store that the run was fitted on, on the machine that trained it",
            )
        runs = RunsFolder(folder.parent)
        before = runs.answers(folder.name)
        kept += name not in before
        runs.keep_answers(folder.name, {**before, name: each.kept})
    return kept


def _name_in(record: Mapping[str, Any], data: LabelledExamples) -> str:
    """The name that a run's record has for the data: where stores share a name, part of the digest is added to it."""
    spec = record["spec"]
    judges: str = spec.get("evaluate_on") or (spec.get("mix") or "").split(",")[-1].partition(":")[0] or spec["store"]
    return dict(zip(judges.split(","), map(str, scored_stores(record)), strict=False)).get(data.digest or "", data.name)
