"""Which examples a run learns from, and in which order.

Draws and orders depend on ``data_seed`` alone, never on the fusion, the head or ``init_seed``: runs with one
``data_seed`` see the same examples in the same order, so their differences are paired. The examples set aside for
validation (:func:`carve`) and those scored during training (:func:`watched_draw`) are the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fusionkit.dataset.split import TaskSplit, tasks_joined
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import UsageError
from fusionkit.plural import counted
from fusionkit.ragged import IntArray
from fusionkit.specs import GIVEN, RunSpec
from fusionkit.tags import are_span_tags, span_types
from fusionkit.tasks import tasks_of

# Random streams of one seed: two uses with the same stream would get the same numbers.
DRAW, ORDER, CARVE = 1, 2, 3
SHARE, RANKING, WATCH, WINDOWED = 7, 8, 9, 10
WINDOW_CHUNKS = 4  # part of the order's definition: another number gives another order


def draw_of(spec: RunSpec, data: TaskData) -> IntArray | None:
    """The training examples that a run learns from, ascending; None is all of them.

    With several tasks, the first task's classes count. UsageError for a draw larger than the training split or than a
    class, one that :func:`check_draw` refuses, and ids that were not given, are not in train or are not unique there.
    """
    if spec.mdl is not None:
        return None  # its train split has only the examples that it learns from
    check_draw(spec)
    train = data.train
    if spec.draw_ids is not None:
        if spec.draw_ids not in data.draws:
            known = ", ".join(data.draws) or "none"
            raise UsageError(f"the draw {spec.draw_ids} is not given", received=known, remedy="add --draw-from")
        return _numbers_of(data.draws[spec.draw_ids], train)
    if spec.shots is None:
        return None
    if spec.draw == "stratified":
        spans = data.task.unit == "word" and are_span_tags(data.labels)
        names = sorted(span_types(data.labels)) if spans else data.labels
        # A class that no example of train holds must be refused like any other class with too few examples.
        none = dict.fromkeys(names, np.zeros(0, dtype=np.int64))
        return stratified_draw(none | train.holders, len(train), spec.shots, spec.data_seed)
    draw = nested_draw if spec.draw == "nested" else uniform_draw
    return draw(len(train), spec.shots, data.classes, spec.data_seed)


def check_draw(spec: RunSpec) -> None:
    """Refuse a stratified draw for a task without classes, and a kind of draw without ``shots``."""
    task = next(iter(tasks_of(spec.task).values()))
    if spec.draw == "stratified" and (task.numeric or task.unit == "row"):
        raise UsageError(
            f"the task {task.name} has no classes to draw the same number of",
            expected="--draw uniform or --draw nested",
            received="--draw stratified",
            remedy="choose another --draw",
        )
    if spec.shots is None and spec.draw not in ("uniform", GIVEN):
        raise UsageError(
            f"--draw {spec.draw} draws nothing: the run learns from all of train",
            expected="--shots N",
            received="none",
            remedy="add --shots, or leave --draw out",
        )


def _numbers_of(ids: Sequence[str], train: TaskSplit) -> IntArray:
    known: dict[str, list[int]] = {one: [] for one in ids}
    for number, one in enumerate(train.ids):
        if one in known:
            known[one].append(number)
    for wrong, what in (
        ([one for one in ids if not known[one]], "are not in train"),
        ([one for one in ids if len(known[one]) > 1], "are those of several training examples"),
    ):
        if wrong:
            raise UsageError(
                f"{len(wrong)} of {len(ids)} ids to draw {what}",
                expected=f"ids of train, like {', '.join(train.ids[:3])}",
                received=", ".join(wrong[:6]) + ("…" if wrong[6:] else ""),
                remedy="give a draw of the same data",
            )
    return np.sort(np.array([numbers[0] for numbers in known.values()], dtype=np.int64))


def uniform_draw(examples: int, shots: int, classes: int, data_seed: int) -> IntArray:
    """``shots · classes`` examples, uniform without replacement, ascending; not stratified (ElNokrashy et al. 2024)."""
    wanted = draw_size(examples, shots, classes)
    rng = np.random.default_rng([data_seed, DRAW])
    return np.sort(rng.choice(examples, wanted, replace=False))


def nested_draw(examples: int, shots: int, classes: int, data_seed: int) -> IntArray:
    """The first ``shots · classes`` examples of one permutation, ascending.

    Each draw is uniform too, and a larger draw contains the smaller ones.
    """
    return _first(examples, draw_size(examples, shots, classes), data_seed, RANKING)


def stratified_draw(holders: Mapping[str, IntArray], examples: int, shots: int, data_seed: int) -> IntArray:
    """For each class the first ``shots`` examples of a permutation that have it; larger draws contain smaller ones.

        draw = ∪_c { the first N of the permutation that hold c }

    Symbols: N is ``shots``, C the number of classes. If each example holds one class, the draw has N examples of each
    class. An example with several classes (a sentence with its entity types) counts for each of them, so the draw has
    N to N·C examples. The N of a class are uniform among its examples; the order of the classes does not matter.

    Args:
        holders: by class the examples that hold it, int64, each once.

    Returns:
        ascending example numbers. UsageError for a class with fewer than ``shots`` examples.
    """
    if few := {name: len(found) for name, found in holders.items() if len(found) < shots}:
        shown = sorted(few.items(), key=lambda one: one[1])[:6]
        raise UsageError(
            f"a stratified draw takes more training examples than {len(few)} of {len(holders)} classes have",
            expected=f"at least {counted(shots, 'example')} of each class",
            received=", ".join(f"{name!r} {count}" for name, count in shown) + ("…" if len(few) > len(shown) else ""),
            remedy="choose fewer --shots, or --draw uniform",
        )
    rank = np.argsort(nested_order(examples, data_seed))  # [examples], each one's place in the permutation
    first = [found[np.argsort(rank[found])[:shots]] for found in holders.values()]
    return np.unique(np.concatenate(first))


def draw_size(examples: int, shots: int, classes: int) -> int:
    """The number of examples in a draw; UsageError where the training split has fewer."""
    wanted = shots * classes
    if wanted > examples:
        raise UsageError(
            "the training split is smaller than the draw",
            expected=f"at most {counted(examples, 'example')}",
            received=f"{counted(shots, 'shot')} × {classes} classes = {wanted}",
            remedy="choose fewer --shots",
        )
    return wanted


def nested_order(examples: int, data_seed: int) -> IntArray:
    """The permutation whose prefixes are the nested draws of a data seed, int64 ``[examples]``."""
    return np.random.default_rng([data_seed, RANKING]).permutation(examples)


def _first(examples: int, count: int, *seed: int) -> IntArray:
    """The first ``count`` entries of a permutation, ascending: uniform; a larger count contains a smaller one's."""
    return np.sort(np.random.default_rng(seed).permutation(examples)[:count])


def share_draw(examples: int, count: int, data_seed: int) -> IntArray:
    """The ``count`` examples drawn as a store's share, ascending; other stores of the mix do not change them."""
    return _first(examples, count, data_seed, SHARE)


def epoch_order(examples: int, data_seed: int, epoch: int) -> IntArray:
    """A permutation of the examples for one epoch."""
    return np.random.default_rng([data_seed, ORDER, epoch]).permutation(examples)


def window_order(chunks: IntArray, data_seed: int, epoch: int) -> list[IntArray]:
    """A permutation of the examples for one epoch that needs few chunks of a store at a time.

        chunks in a random order, :data:`WINDOW_CHUNKS` per window; a window's examples in a random order

    Args:
        chunks: the chunk in which each example begins, int64 ``[examples]``.

    Returns:
        the examples of each window; each example is in one window, and no window is empty.
    """
    rng = np.random.default_rng([data_seed, WINDOWED, epoch])
    order = rng.permutation(np.unique(chunks))
    windows = [order[at : at + WINDOW_CHUNKS] for at in range(0, len(order), WINDOW_CHUNKS)]
    return [rng.permutation(np.flatnonzero(np.isin(chunks, window))) for window in windows]


def carve(examples: int, share: float) -> tuple[IntArray, IntArray]:
    """Split off a validation share: the other training examples and the share, ascending, the same in every run."""
    order = np.random.default_rng([0, CARVE]).permutation(examples)
    size = max(1, round(examples * share))
    return np.sort(order[size:]), np.sort(order[:size])


def watched_split(spec: RunSpec, data: TaskData) -> TaskSplit:
    """The examples scored during training to choose the epoch: ``validate_on`` of validation, or all of it."""
    if data.apart and spec.validate_on is not None:
        return tasks_joined({name: watched_split(spec, part) for name, part in data.parts.items()}, apart=True)
    whole = data.validation
    if spec.validate_on is None or spec.validate_on >= len(whole):
        return whole
    return whole.subset(watched_draw(len(whole), spec.validate_on))


def watched_draw(examples: int, count: int) -> IntArray:
    """The validation examples that are scored during training, ascending: the same in every run."""
    return _first(examples, count, 0, WATCH)
