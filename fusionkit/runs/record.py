"""The record of one run, and its rows in a table of results.

A run of several tasks over stores of their own has a row for each task, and one for the mean of their scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusionkit.metrics import split_score
from fusionkit.names import FLOORS, MEAN
from fusionkit.options.entry import options_of
from fusionkit.specs import OF_TASKS, RunSpec
from fusionkit.statistics.answer_bytes import from_text
from fusionkit.statistics.kept_answers import RunAnswers
from fusionkit.tasks import parts_of, tasks_of

# What a run cost besides its own share of ``seconds``; a failed run has none of these.
COSTS = (
    "seconds_alone", "training_flops", "prediction_flops", "peak_memory", "peak_memory_alone", "kept_bytes", "threads",
    "processes",
    "delta_bytes", "memory_weights", "memory_gradients", "memory_optimizer", "memory_activations",
)  # fmt: skip
FLAT = (
    "status", "data", "encoder", "rows", "metric", "score", "validation_score", "best_epoch", "steps",
    "fusion_parameters", "head_parameters", "encoder_parameters", "temperature", "largest_weight", "seconds",
    "trained_parameters", "evaluated", "scored_on", "init_data", "sides", *COSTS, "parameters_per_task",
    "total_parameters", "encoder_multiple",
)  # fmt: skip
CODE = ("code_length", "uniform_length")  # in bits, for a run that codes a block of an online code
IDENTITY = "data_identity"  # a digest of the data: data sets may share a name


def digest_of_record(record: dict[str, Any]) -> str:
    """The digest of a record's run, which is the name of its folder."""
    return RunSpec.from_dict(record["spec"]).digest


def is_floor(record: Mapping[str, Any]) -> bool:
    """Whether a record is of a floor, which has no weights."""
    spec = record.get("spec")
    return isinstance(spec, Mapping) and spec.get("fusion") in FLOORS


def all_failed(records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether there are runs and none of them, floors aside, has a head."""
    statuses = {record["status"] for record in records if not is_floor(record)}
    return statuses == {"failed"}


def first_error(records: Iterable[Mapping[str, Any]]) -> str:
    """The first line of the error of the first failed run; empty where none failed."""
    return next(
        (next(iter(str(each.get("error", "")).splitlines()), "") for each in records if each["status"] == "failed"), ""
    )


def answers_in(record: Mapping[str, Any]) -> dict[str, RunAnswers]:
    """The answers that a record of a file has (:mod:`fusionkit.runs.records_file`); ValueError for damaged ones."""
    return from_text(text) if isinstance(text := record.get("answers"), str) else {}


def others_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record's entries about all of a run's tasks but the first, by their names: ``labels``, ``default``,
    ``layer_weights``.
    """
    return dict(record.get("others") or {})


def task_scores(record: dict[str, Any]) -> dict[str, float | None]:
    """For a run of several tasks each task's own metric on test, by task and metric: ``topic_accuracy``."""
    scores = record.get("scores", {})
    names = list(tasks_of(record["spec"]["task"])) if others_of(record) else []
    told: dict[str, str] = {}
    for score in scores.get("validation", {}):
        if (task := split_score(score, names)[0]) is not None:
            told.setdefault(task, score)
    return {score: scores.get("test", {}).get(score) for score in told.values()}


def metrics_of(record: Mapping[str, Any], each_task: bool) -> set[str]:
    """The scores that a table can show of a run. Of tasks over stores of their own each has a row where ``each_task``:
    the names are then without that of the task in front (:func:`flat_tests`).
    """
    names = set(record.get("scores", {}).get("validation", {}))
    if not each_task or not record["spec"].get("task_stores"):
        return names
    tasks = parts_of(RunSpec.from_dict(record["spec"]))
    return {split_score(name, tasks)[1] for name in names}


def layer_weights_of(record: dict[str, Any]) -> dict[str, list[float] | None]:
    """The mean weight of each layer, by the column it is used for; by the task for tasks over stores of their own. None
    for a fusion without such weights.
    """
    found = [record.get("layer_weights"), *(each.get("layer_weights") for each in others_of(record).values())]
    label, tasks = record["spec"]["label"], tasks_of(record["spec"]["task"])
    names = list(tasks) if record["spec"].get("task_stores") else label.split(",") if len(found) > 1 else [label]
    return dict(zip(names, found, strict=True))


def timed_curve(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A record's epochs; none for a failed run. Each has ``seconds``, the time until that epoch's end as the run's own
    share of what was trained together, and ``seconds_alone``, scaled to the time that the run would take alone.
    """
    whole, alone = record.get("seconds") or 0.0, record.get("seconds_alone")
    scale = None if alone is None or not whole else alone / whole
    return [
        {**epoch, "seconds": seconds, "seconds_alone": None if scale is None else scale * seconds}
        for epoch, seconds in zip(record.get("curve") or [], record.get("epoch_seconds") or [], strict=True)
    ]


def flat_record(record: dict[str, Any], metric: str | None = None) -> dict[str, Any]:
    """A record's spec and results side by side, without curve and lists; the scores of one metric. ``evaluated`` is
    the first of several stores that it was scored on, because the scores are of that.
    """
    own = {name: record.get(name) for name in (*FLAT, IDENTITY)}
    flat = {"digest": digest_of_record(record), **record["spec"], **own, "evaluated": scored_stores(record)[0]}
    if flat.get("max_steps") is not None:
        flat["epochs"] = None  # the run ended by its steps; its spec has the default
    if not flat["task_stores"]:
        known = options_of(RunSpec)  # OF_TASKS do not apply to a run over one store
        flat |= {name: None for name in OF_TASKS if flat.get(name) == known[name].default}
    else:
        flat |= _parameters_of_tasks(record)
    flat |= task_scores(record)
    if record["spec"].get("mdl") is not None:
        flat |= {name: record.get("scores", {}).get("test", {}).get(name) for name in CODE}
    if metric is not None:
        scores = record.get("scores", {})
        flat |= {
            "metric": metric,
            "score": scores.get("test", {}).get(metric),
            "validation_score": scores.get("validation", {}).get(metric),
        }
    return flat | {"scored_on": _scored_on(flat)}


def flat_tests(record: dict[str, Any], metric: str | None = None) -> list[dict[str, Any]]:
    """A record as :func:`flat_record` gives it: one row per store that it was scored on; for several tasks over stores
    of their own, one row per task and one for their mean.
    """
    if record["spec"].get("task_stores"):
        return _rows_of_tasks(record, flat_record(record), metric)
    flat = flat_record(record, metric)
    tests = record.get("tests") or {name: {flat["metric"]: flat["score"]} for name in scored_stores(record)}
    rows = [{**flat, "evaluated": name, "score": scores.get(flat["metric"])} for name, scores in tests.items()]
    return [{**row, "scored_on": _scored_on(row)} for row in rows]


def _rows_of_tasks(record: dict[str, Any], flat: Mapping[str, Any], metric: str | None) -> list[dict[str, Any]]:
    """One row per task, whose ``task`` is the task's name, and a last row whose ``task`` is ``mean``. A run that has
    not finished has the last row alone.

    Args:
        flat: the whole run's row. metric: shown instead of each task's own score, for the tasks that have it; there is
            no row of the mean then, unless it is ``mean``.
    """
    mean = {**flat, "task": MEAN, "label": None}  # with the heads of all tasks: runs of others are other settings
    if flat["status"] != "finished":
        return [mean]
    scores, rows = record["scores"], list[dict[str, Any]]()
    tasks = parts_of(RunSpec.from_dict(record["spec"])).items()
    for (name, part), usual in zip(tasks, task_scores(record), strict=True):
        shown = usual if metric in (None, MEAN) else f"{name}_{metric}"
        if (value := scores["validation"].get(shown)) is not None:
            row = {**flat, "task": name, "label": part.label, "head": part.head, "metric": shown}
            row |= {"score": scores.get("test", {}).get(shown), "validation_score": value}
            rows.append({**row, "scored_on": _scored_on(row)})
    return rows if metric not in (None, MEAN) else [*rows, mean]


def scored_stores(record: Mapping[str, Any]) -> Sequence[str | None]:
    """The names of the stores that a run is scored on; None for a record that does not tell them."""
    names, stores = record.get("evaluated"), record["spec"].get("evaluate_on") or ""
    return [None] if names is None else str(names).split(", ", stores.count(","))


def _parameters_of_tasks(record: Mapping[str, Any]) -> dict[str, Any]:
    """The number of parameters that several tasks over one encoder need without their heads, and that number as a
    multiple of the encoder's parameters.
    """
    own, encoder = record.get("parameters_per_task"), record.get("encoder_parameters")
    if own is None or not encoder:
        return {}
    total = encoder + own * len(record["spec"]["task_stores"].split(","))
    return {"total_parameters": total, "encoder_multiple": total / encoder}


def _scored_on(flat: Mapping[str, Any]) -> str | None:
    """The split whose score counts: test, or validation where there is no test; None for a run without a score."""
    if flat["status"] != "finished":
        return None
    counts = {"test": flat["score"], "validation": flat["validation_score"]}
    return next((split for split, score in counts.items() if score is not None), None)
