"""Which examples a run learns from, and in which order.

Everything here depends on ``data_seed`` alone, never on the fusion, the head or ``init_seed``: runs with one
``data_seed`` see the same examples in the same order, so their differences are paired.
"""

from __future__ import annotations

import numpy as np

from fusionkit.errors import UsageError
from fusionkit.ragged import IntArray

# Streams of one seed that must not repeat each other.
DRAW, ORDER, CARVE = 1, 2, 3
SHARE = 7


def uniform_draw(examples: int, shots: int, classes: int, data_seed: int) -> IntArray:
    """``shots · classes`` examples uniformly without replacement, not stratified (ElNokrashy et al. 2024).

    Returns:
        ascending example numbers.
    """
    wanted = shots * classes
    if wanted > examples:
        raise UsageError(
            "the training split is smaller than the draw",
            expected=f"at most {examples} examples",
            received=f"{shots} shots × {classes} classes = {wanted}",
            remedy="choose fewer --shots",
        )
    rng = np.random.default_rng([data_seed, DRAW])
    return np.sort(rng.choice(examples, wanted, replace=False))


def share_draw(examples: int, count: int, data_seed: int) -> IntArray:
    """``count`` examples uniformly without replacement, whatever other stores they are joined with.

    Returns:
        ascending example numbers; a larger count holds those of a smaller one.
    """
    return np.sort(np.random.default_rng([data_seed, SHARE]).permutation(examples)[:count])


def epoch_order(examples: int, data_seed: int, epoch: int) -> IntArray:
    """A permutation of the examples for one epoch."""
    return np.random.default_rng([data_seed, ORDER, epoch]).permutation(examples)


def carve(examples: int, share: float) -> tuple[IntArray, IntArray]:
    """Split off a validation share, always the same one so that all runs are judged on the same examples.

    Returns:
        ascending example numbers that stay, and those of the share.
    """
    order = np.random.default_rng([0, CARVE]).permutation(examples)
    size = max(1, round(examples * share))
    return np.sort(order[size:]), np.sort(order[:size])
