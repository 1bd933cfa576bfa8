"""Which examples a run learns from, and in which order.

Everything here depends on ``data_seed`` alone, never on the fusion, the head or ``init_seed``: runs with one
``data_seed`` see the same examples in the same order, so their differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fusionkit.errors import UsageError
from fusionkit.ragged import IntArray

# Streams of one seed that must not repeat each other.
DRAW, ORDER, CARVE = 1, 2, 3
SHARE, RANKING, WATCH, WINDOWED = 7, 8, 9, 10
WINDOW_CHUNKS = 4  # part of what an order is: another number is another order


def uniform_draw(examples: int, shots: int, classes: int, data_seed: int) -> IntArray:
    """``shots · classes`` examples uniformly without replacement, not stratified (ElNokrashy et al. 2024).

    Returns:
        ascending example numbers.
    """
    wanted = _wanted(examples, shots, classes)
    rng = np.random.default_rng([data_seed, DRAW])
    return np.sort(rng.choice(examples, wanted, replace=False))


def nested_draw(examples: int, shots: int, classes: int, data_seed: int) -> IntArray:
    """The first ``shots · classes`` examples of one permutation: uniform too, and smaller draws lie in larger ones.

    Returns:
        ascending example numbers.
    """
    return np.sort(_ranking(examples, data_seed)[: _wanted(examples, shots, classes)])


def stratified_draw(holders: Mapping[str, IntArray], examples: int, shots: int, data_seed: int) -> IntArray:
    """Of each class the first ``shots`` examples that hold it, in one permutation; smaller draws lie in larger ones.

        draw = ∪_c { the first N of the permutation that hold c }

    Where an example holds one class these are N of each. One that holds several (a sentence with its entity types)
    counts for each of them, so there are from N to N·C; each class's N are uniform among those that hold it, and no
    order of the classes has a say.

    Args:
        holders: by class the examples that hold it, int64, each once.

    Returns:
        ascending example numbers.

    Raises:
        UsageError: a class that fewer examples hold.
    """
    if few := {name: len(found) for name, found in holders.items() if len(found) < shots}:
        shown = sorted(few.items(), key=lambda one: one[1])[:6]
        raise UsageError(
            f"{len(few)} of {len(holders)} classes have fewer training examples than a stratified draw takes",
            expected=f"at least {shots} examples of each class",
            received=", ".join(f"{name!r} {count}" for name, count in shown) + ("…" if len(few) > len(shown) else ""),
            remedy="choose fewer --shots, or --draw uniform",
        )
    rank = np.argsort(_ranking(examples, data_seed))  # each example's place in the permutation
    first = [found[np.argsort(rank[found])[:shots]] for found in holders.values()]
    return np.unique(np.concatenate(first))


def _wanted(examples: int, shots: int, classes: int) -> int:
    wanted = shots * classes
    if wanted > examples:
        raise UsageError(
            "the training split is smaller than the draw",
            expected=f"at most {examples} examples",
            received=f"{shots} shots × {classes} classes = {wanted}",
            remedy="choose fewer --shots",
        )
    return wanted


def _ranking(examples: int, data_seed: int) -> IntArray:
    return np.random.default_rng([data_seed, RANKING]).permutation(examples)


def share_draw(examples: int, count: int, data_seed: int) -> IntArray:
    """``count`` examples uniformly without replacement, whatever other stores they are joined with.

    Returns:
        ascending example numbers; a larger count holds those of a smaller one.
    """
    return np.sort(np.random.default_rng([data_seed, SHARE]).permutation(examples)[:count])


def epoch_order(examples: int, data_seed: int, epoch: int) -> IntArray:
    """A permutation of the examples for one epoch."""
    return np.random.default_rng([data_seed, ORDER, epoch]).permutation(examples)


def window_order(chunks: IntArray, data_seed: int, epoch: int) -> list[IntArray]:
    """A permutation of the examples for one epoch that needs few chunks of a store at a time.

        chunks in a random order, :data:`WINDOW_CHUNKS` of them a window; a window's examples in a random order

    Args:
        chunks: the chunk in which each example begins, int64 ``[examples]``.

    Returns:
        the examples window by window: each in one of them, none of them empty.
    """
    rng = np.random.default_rng([data_seed, WINDOWED, epoch])
    order = rng.permutation(np.unique(chunks))
    windows = [order[at : at + WINDOW_CHUNKS] for at in range(0, len(order), WINDOW_CHUNKS)]
    return [rng.permutation(np.flatnonzero(np.isin(chunks, window))) for window in windows]


def carve(examples: int, share: float) -> tuple[IntArray, IntArray]:
    """Split off a validation share, always the same one so that all runs are judged on the same examples.

    Returns:
        ascending example numbers that stay, and those of the share.
    """
    order = np.random.default_rng([0, CARVE]).permutation(examples)
    size = max(1, round(examples * share))
    return np.sort(order[size:]), np.sort(order[:size])


def watched_draw(examples: int, count: int) -> IntArray:
    """The validation examples that are scored while training: ``count`` of them uniformly, the same in every run.

    Returns:
        ascending example numbers; a larger count holds those of a smaller one.
    """
    return np.sort(np.random.default_rng([0, WATCH]).permutation(examples)[:count])
