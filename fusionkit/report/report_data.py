"""The runs of a report: read once, named for readers, with those that validation chose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from fusionkit.errors import NothingFinishedError, UsageError
from fusionkit.io.places import Place
from fusionkit.report.display_names import METHOD_AXES, TASK_AXES, in_order, named, own_metric, unit_of
from fusionkit.report.styles import Style, styles_of
from fusionkit.runs.choice import Chosen, choose
from fusionkit.runs.example_scores import ExampleScores
from fusionkit.runs.folder import RunsFolder
from fusionkit.runs.frames import answers_of
from fusionkit.runs.note_texts import value_text
from fusionkit.runs.record import digest_of_record, flat_tests, is_floor
from fusionkit.runs.summary import AXES, OF_A_SEED, OF_FLOORS
from fusionkit.specs import is_plain
from fusionkit.store import Store
from fusionkit.store.encode_seconds import encode_seconds
from fusionkit.store.nearby import find_stores

# Axes that validation chooses: all that define neither the task nor the method.
# The store is one of them: a mean over two stores of the same data would mix different settings.
TRIED = tuple(name for name in AXES if name not in (*TASK_AXES, *METHOD_AXES, *OF_A_SEED, "fusion", "shots"))
CELL = ["task_name", "shots_name", "method"]


@dataclass(frozen=True, eq=False)
class ReportData:
    """Runs, read and named.

    Attributes:
        folders: of the runs. records: by digest. frame: one row per run and store that it was scored on: the columns of
            :func:`fusionkit.results`, with ``task_name``, ``method``, ``shots_name``, ``data_identity`` and ``folder``.
        stores: the stores that were found, by digest. floors: a frame of the floors, for which no head is trained.
            probing: the number of runs on control labels and of blocks of online codes in the folders, which the report
            leaves out and `fusionkit results` sums up. given_stores: where the user said that stores are.
        encode_seconds: of each store that tells them, by its digest: the seconds that each split's encoding took.
    """

    folders: list[Path]
    records: dict[str, dict[str, Any]]
    frame: pd.DataFrame
    stores: dict[str, Store]
    floors: pd.DataFrame = field(default_factory=pd.DataFrame)
    probing: int = 0
    given_stores: Sequence[Place] = ()
    encode_seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @cached_property
    def answers(self) -> ExampleScores:
        """The answers of the runs on test."""
        runs = self.frame if self.floors.empty else pd.concat([self.frame, self.floors])
        return answers_of(dict(zip(runs["digest"], runs["folder"], strict=True)))

    @cached_property
    def tasks(self) -> list[str]:
        """The names of the tasks, in the order that their runs ended."""
        return list(dict.fromkeys(self.frame["task_name"]))

    @cached_property
    def methods(self) -> list[str]:
        """The names of the methods, in the order of the table of fusions."""
        return in_order(self.frame["method"].tolist())

    def styles(self, names: Sequence[str]) -> dict[str, Style]:
        """The style of each of these names: methods of this report, or names that only one chart has."""
        return styles_of(self.methods, names)

    @cached_property
    def shots(self) -> list[str]:
        """``8``, ``32``, …, ``all``: the sizes of draws, the smallest first."""
        sizes = sorted({int(value) for value in self.frame["shots"].dropna()})
        return [str(size) for size in sizes] + (["all"] if self.frame["shots"].isna().any() else [])

    @cached_property
    def chosen(self) -> pd.DataFrame:
        """The finished runs whose options had the best mean validation score, for each task, size of draw and
        method.
        """
        return self.chosen_within(CELL)

    def chosen_within(self, by: Sequence[str]) -> pd.DataFrame:
        """:attr:`chosen` for each group by these columns instead."""
        return self._choice(by).frame

    @cached_property
    def choice_notes(self) -> list[str]:
        """Notes for a reader of :attr:`chosen`: the values that were tried, and choices at their edge."""
        return self._choice(CELL).notes

    def _choice(self, by: Sequence[str]) -> Chosen:
        # A group without a finished run keeps its failed ones in ``choose``: they have no score to report.
        found = choose(self.frame, TRIED, by)
        return replace(found, frame=found.frame[found.frame["status"] == "finished"])

    @cached_property
    def floors_beside(self) -> pd.DataFrame:
        """The floors over the data of :attr:`chosen`, with its ``task_name`` and ``shots_name``: one row per run."""
        if self.floors.empty:
            return self.floors
        data = [name for name in OF_FLOORS if name not in ("fusion", "sides")]
        cells = self.chosen[[*data, *CELL[:2]]].drop_duplicates()
        as_text = partial(value_text, missing="")  # a merge would not treat None and NaN as equal
        keyed = [each.assign(**{name: each[name].map(as_text) for name in data}) for each in (self.floors, cells)]
        return keyed[0].merge(keyed[1], on=data)

    @cached_property
    def whole(self) -> pd.DataFrame:
        """The runs of :attr:`chosen` on each task's largest draw."""
        return self._of_draws("max")

    @cached_property
    def smallest_and_largest(self) -> pd.DataFrame:
        """The runs of :attr:`chosen` on each task's smallest draw, then those on its largest; task after task."""
        both = pd.concat([self._of_draws("min"), self.whole]).drop_duplicates(["digest", "task_name"])
        return both.sort_values("task_name", kind="stable", key=lambda names: names.map(self.tasks.index))

    def _of_draws(self, which: Literal["min", "max"]) -> pd.DataFrame:
        order = {name: place for place, name in enumerate(self.shots)}
        size = self.chosen["shots_name"].map(order)
        kept: pd.DataFrame = self.chosen[size == size.groupby(self.chosen["task_name"]).transform(which)]
        return kept

    @cached_property
    def _metrics(self) -> dict[object, str]:
        rows = self.frame.dropna(subset="metric").drop_duplicates("task_name").to_dict(orient="records")
        return {row["task_name"]: own_metric(row) for row in rows}

    def metric(self, task: object) -> str | None:
        """The name of the score of a task's runs; None if no run of it has one."""
        return self._metrics.get(task)

    def task_with_unit(self, task: object, more: str = "") -> str:
        """A task with the unit of its score: ``atis · slots (F1, %)``; ``more`` stands before the unit."""
        return f"{task}{more} ({unit_of(self.metric(task))})"

    def epoch_steps(self, record: dict[str, Any]) -> int | None:
        """The optimizer steps of an epoch; None as in :meth:`examples_learned`."""
        if record.get("sampled"):  # of tasks over stores of their own, by task and epoch
            return int(sum(steps[0] for steps in record["sampled"].values()))
        if record.get("curve") and record.get("steps") and record["spec"].get("max_steps") is None:
            return int(record["steps"] // len(record["curve"]))  # all of its epochs are whole
        examples = self.examples_learned(record)
        return None if examples is None else math.ceil(examples / record["spec"]["batch_size"])

    def examples_learned(self, record: dict[str, Any]) -> int | None:
        """The training examples of an epoch; None where neither the record nor an existing store says.

        For a whole training split all examples count, although those without a label are left out: these are too few to
        show.
        """
        if record.get("draw"):
            return len(record["draw"])
        spec = record["spec"]
        store = self.stores.get(spec["store"])
        if spec["mix"] is not None or spec["shots"] is not None or store is None or "train" not in store.splits:
            return None
        if spec["task"] == "mlm":  # texts of which nothing is masked may be many
            return int(np.count_nonzero(np.diff(store["train"].row_offsets)))
        return int(store.manifest["splits"]["train"]["examples"])


def read_report_data(runs: Sequence[Path], stores: Sequence[Place] = ()) -> ReportData:
    """Read folders of runs; a run that lies in several counts once, by its finished record if it has one.

    Args:
        stores: stores or folders of stores, besides those around the folders of runs.

    Raises:
        UsageError: no folder is given, or one holds no finished run. NothingFinishedError: the folders hold floors or
            probing runs alone. StoreError: a record is damaged.
    """
    if not runs:
        raise UsageError("no runs are given", expected="a folder that `fusionkit fit --out` wrote, or several")
    folders = [Path(path).expanduser() for path in runs]
    records: dict[str, dict[str, Any]] = {}
    places: dict[str, Path] = {}
    floors, probing = [], set[str]()
    for folder in folders:
        for record in RunsFolder(folder).records():
            digest = digest_of_record(record)
            if is_floor(record):
                floors += [{**row, "folder": str(folder)} for row in flat_tests(record)]
            elif not is_plain(record["spec"]):
                probing.add(digest)
            elif digest not in records or (record["status"] == "finished" != records[digest]["status"]):
                records[digest], places[digest] = record, folder
    rows = [
        {**row, "folder": str(places[digest]), "data_identity": record.get("data_identity")}
        for digest, record in records.items()
        for row in flat_tests(record)
    ]
    if not rows:
        raise NothingFinishedError(
            "there is no head to report on",
            expected="runs of a fusion",
            received=", ".join(map(str, folders)) + ", which hold floors or probing runs alone",
            remedy="name the folder that `fusionkit fit --out` wrote",
        )
    beside = pd.DataFrame(floors).drop_duplicates(["digest", "evaluated"]) if floors else pd.DataFrame()
    frame = named(pd.DataFrame(rows))
    found = find_stores(folders, stores)
    seconds = {digest: told for digest, store in found.items() if (told := encode_seconds(store))}
    return ReportData(folders, records, frame, found, beside, len(probing), stores, seconds)
