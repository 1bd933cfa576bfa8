"""What is kept of a run of several tasks where each task has a best epoch of its own (``--choose-epoch each``).

Each task's head, its fusion and all that the method trained are those of the task's own best epoch. So weights that
tasks share in training are kept once per task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fusionkit.fit.train.result import BestEpoch
from fusionkit.methods.per_task import OF, of_task
from fusionkit.metrics import is_better, joint_means, split_score


def with_better_tasks(
    best: BestEpoch | None,
    delta: Mapping[str, Tensor],
    now: BestEpoch,
    trained: Mapping[str, Tensor],
    tasks: Sequence[str],
    shared: bool,
) -> tuple[BestEpoch | None, dict[str, Tensor], list[str]]:
    """Replace, in what was kept, the tasks that are better in this epoch.

    Args:
        best, delta: what was kept before, the latter by ``NAME@TASK``. now, trained: this epoch's model with its
            scores, and what the method trained. shared: whether the tasks share one fusion.

    Returns:
        the updated best epoch and delta, and the names of the better tasks.
    """
    assert now.scores is not None
    found = _by_task(now.scores, tasks)
    known = {} if best is None or best.scores is None else _by_task(best.scores, tasks)
    better = [name for name in tasks if name not in known or _beats(found[name], known[name])]
    if not better:
        return best, dict(delta), better
    weights, kept = dict({} if best is None else best.weights), dict(delta)
    scores = {name: found[name] if name in better else known[name] for name in tasks}
    for name in better:
        # Copied for each task: a file of weights cannot hold one tensor under two names.
        weights |= {weight: value.clone() for weight, value in model_of_task(now.weights, name, shared).items()}
        kept |= {f"{weight}{OF}{name}": value.clone() for weight, value in of_task(trained, name).items()}
    means = joint_means(scores, None)
    return BestEpoch(next(iter(means.values())), now.epoch, weights, scores=means), kept, better


def model_of_task(weights: Mapping[str, Tensor], task: str, shared: bool) -> dict[str, Tensor]:
    """A task's head and fusion, named as in a model in which each task has its own fusion."""
    found = {}
    for name, value in weights.items():
        part, owner = name.split(".")[:2]
        if shared and part == "fusion":  # a task may have the name of one of its weights
            found[f"fusion.{task}.{name.partition('.')[2]}"] = value
        elif owner == task:
            found[name] = value
    return found


def _by_task(scores: Mapping[str, float], tasks: Sequence[str]) -> dict[str, dict[str, float]]:
    """The scores of each task, its own metric first."""
    found: dict[str, dict[str, float]] = {name: {} for name in tasks}
    for score, value in scores.items():
        owner, own = split_score(score, tasks)
        if owner is not None:
            found[owner][own] = value
    return found


def _beats(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    metric = next(iter(one))
    return is_better(metric, one[metric], other[metric])
