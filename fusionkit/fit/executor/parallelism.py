"""How many processes share a sweep: as units allow, where that is worth their start."""

from __future__ import annotations

from collections.abc import Sequence

START_SECONDS = 3.0  # a worker's imports, on the machines that this was seen on


def share_out(units: Sequence[float], workers: int) -> float:
    """Seconds until the last of so many workers is done, who take the units in their order.

    Args:
        units: the seconds of each.
    """
    until = [0.0] * max(workers, 1)
    for seconds in units:
        until[until.index(min(until))] += seconds
    return max(until)


def worth_it(units: Sequence[float], workers: int) -> bool:
    """Whether so many workers are done before one process alone, their start included."""
    return START_SECONDS + share_out(units, workers) < share_out(units, 1)
