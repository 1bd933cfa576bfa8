"""Folders of runs as pandas frames: results, curves, layer weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fusionkit.errors import UsageError
from fusionkit.runs.comparison.pairing import DATA_SEED
from fusionkit.runs.example_scores import ExampleScores
from fusionkit.runs.folder import RunsFolder
from fusionkit.runs.record import digest_of_record, layer_weights_of, timed_curve
from fusionkit.runs.shown_split import TEST
from fusionkit.runs.tabulate import tabulate

Rows = list[dict[str, Any]]


class Results(pd.DataFrame):
    """One row per run: a pandas frame whose :meth:`summary` is the table of ``fusionkit results``."""

    @property
    def _constructor(self) -> Callable[..., Results]:  # a selection of runs has the method too
        return Results

    def summary(
        self,
        by: str | Sequence[str] = (),
        *,
        split: str = TEST,
        choose_by: str | None = None,
        baseline: str | None = None,
        average: str | Sequence[str] = (),
        over: str | None = None,
        block: str = DATA_SEED,
        interval: str = "t",
        simultaneous: bool = False,
        test: str | None = None,
        correction: str = "holm",
        pareto: str | None = None,
        ranks: bool = False,
    ) -> pd.DataFrame:
        """One row per group: mean and standard deviation over seeds and draws only, and the 95 % interval.

        Args:
            by: columns to group by; none means all that differ. An option on which runs of one group differ is a column
                too, unless ``average`` names it or ``choose_by="validation"`` chooses its value.
            split, choose_by, baseline, average, over, block, interval, simultaneous, test, correction, pareto, ranks:
                as the options of ``fusionkit results``.

        Returns:
            the columns of ``fusionkit results --format csv``, scores as fractions; ``attrs["notes"]`` are the lines
            below the table. UsageError for an unknown name.
        """
        return tabulate(
            pd.DataFrame(self),
            [by] if isinstance(by, str) else by,
            split=split,
            choose_by=choose_by,
            baseline=baseline,
            average=[average] if isinstance(average, str) else average,
            over=over,
            block=block,
            interval=interval,
            simultaneous=simultaneous,
            test=test,
            correction=correction,
            pareto=pareto,
            ranks=ranks,
            answers=answers_of(dict(zip(self["digest"], self["folder"], strict=True))) if "folder" in self else None,
        )


def answers_of(folders: Mapping[str, str | Path]) -> ExampleScores:
    """The answers of runs on test; ``folders`` maps each run's digest to the folder of runs that holds it."""
    return ExampleScores(lambda digest: RunsFolder(Path(folders[digest]).expanduser()).answers(digest))


def results(*runs: str | Path | Iterable[str | Path], metric: str | None = None, each_test: bool = False) -> Results:
    """The finished, stopped and failed runs of one folder or several as a flat table.

    Args:
        runs: folders that ``fusionkit fit`` wrote, or lists of such.
        metric: the score to show; None means each task's own.
        each_test: one row for each store that a run was scored on; for a run of several tasks over stores of their own
            one row per task and one for their mean.

    Returns:
        one row per run: its ``digest``, the fields of its :class:`fusionkit.specs.RunSpec`, ``status``, ``metric``,
        ``score`` (test), ``validation_score``, ``scored_on`` (which of the two counts), ``best_epoch``, parameters,
        ``seconds``, where the data came from, for a run of several tasks each task's score by its own metric
        (``topic_accuracy``), and the ``folder``. Scores are fractions. A run that is in several folders counts once,
        from the first. ``results(…).summary(…)`` is the table of ``fusionkit results``.
        UsageError if no folder is named, one holds no record, or no run has such a score; StoreError for a damaged
        record.
    """
    return Results(
        _of_all(runs, lambda folder: folder.rows(metric, each_test), ["evaluated", "task"] if each_test else [])
    )


def curves(*runs: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """The epochs of the runs of one folder or several, one row per epoch, with the fields of the run's spec.

    Args:
        runs: as for :func:`results`.

    Returns:
        one row per epoch: the run's ``digest``, the fields of its :class:`fusionkit.specs.RunSpec`, ``metric``, then
        ``epoch`` (from 1), ``loss`` (its mean over the epoch), ``validation_score`` (none where it was not scored),
        ``seconds`` (the time until that epoch's end, as the run's share of what was trained together),
        ``seconds_alone`` (scaled to the time that the run would take alone) and the ``folder``.
        Errors are those of :func:`results`.
    """

    def rows(folder: RunsFolder) -> Rows:
        return [
            {"digest": digest_of_record(record), **record["spec"], "metric": record["metric"], **point}
            for record in folder.records()
            for point in timed_curve(record)
        ]

    return _of_all(runs, rows, ["epoch"])


def layer_weights(*runs: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """The layer weights of the runs of one folder or several: one row per run and layer.

    Args:
        runs: as for :func:`results`.

    Returns:
        one row per layer: the run's ``digest``, the fields of its :class:`fusionkit.specs.RunSpec`, then ``layer`` (0
        is the embeddings), ``weight`` (its mean over the validation rows) and the ``folder``. Runs whose fusions have
        no such weights have no rows. A run of several tasks has rows for each of its columns, or for each of its tasks
        if they are over stores of their own; ``label`` names the column or the task.
        Errors are those of :func:`results`.
    """

    def rows(folder: RunsFolder) -> Rows:
        return [
            {"digest": digest_of_record(record), **record["spec"], "label": label, "layer": layer, "weight": weight}
            for record in folder.records()
            for label, weights in layer_weights_of(record).items()
            if weights is not None
            for layer, weight in zip(record["layers"], weights, strict=True)
        ]

    return _of_all(runs, rows, ["label", "layer"])


def _of_all(
    runs: Iterable[str | Path | Iterable[str | Path]], rows_of: Callable[[RunsFolder], Rows], within: list[str]
) -> pd.DataFrame:
    """The rows of all folders as one table; ``digest`` and the columns ``within`` identify a row."""
    places = [Path(path) for each in runs for path in ([each] if isinstance(each, (str, Path)) else each)]
    if not places:
        raise UsageError("no folder of runs is named", remedy='name one or more: results("runs", "more")')
    # One table from all rows at once: with one table per folder, a column that is empty in a folder would change type.
    rows = [(str(place), row) for place in places for row in rows_of(RunsFolder(place.expanduser()))]
    found = pd.DataFrame([row for _, row in rows]).assign(folder=[place for place, _ in rows])
    return found.drop_duplicates(["digest", *within], ignore_index=True) if rows else pd.DataFrame()
