"""Checks of a sweep's options that their entries cannot make. They load torch only for methods."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fusionkit.dataset.share import parse_share
from fusionkit.errors import UsageError, unknown_name
from fusionkit.fit.sweep.method_choices import asked_layer, check_encoder_rate, method_spelling
from fusionkit.fit.sweep.open_widths import OpenWidth
from fusionkit.fusions import fusion_name
from fusionkit.names import EVERY_LAYER, FLOORS
from fusionkit.options.tables import FIT
from fusionkit.options.yaml_file import Checks
from fusionkit.tasks.head_check import check_name
from fusionkit.tasks.joint import check_task

NO_FLOOR = "none"


def check_watched(text: str) -> str | None:
    """The spelling of a number of validation examples, or of a share of them; None for all, UsageError for neither."""
    try:
        return parse_share(text)
    except UsageError as error:
        raise UsageError(
            "--validate-on takes a number of validation examples, or a share of them",
            expected="a number like 800, or a percentage above 0, at most 100, like 10%",
            received=text,
            remedy="correct it, or leave it out to score all of validation every epoch",
        ) from error


def seed_pairs(
    seeds: int | None = None, data_seeds: int | None = None, init_seeds: int | None = None
) -> list[tuple[int, int]]:
    """The ``data_seed`` and ``init_seed`` of each trial: the same number, or all pairs where they are counted apart."""
    apart = {"--data-seeds": data_seeds, "--init-seeds": init_seeds}
    if seeds is not None and (given := [f"{name} {count}" for name, count in apart.items() if count is not None]):
        raise UsageError(
            "--seeds counts trials that differ in both seeds",
            expected="--seeds K, or --data-seeds K with --init-seeds M for K × M trials",
            received=", ".join([f"--seeds {seeds}", *given]),
            remedy="leave --seeds out, or the others",
        )
    for name, count in ({"--seeds": seeds} | apart).items():
        if count is not None and count < 1:
            raise UsageError(
                f"{name} counts trials", expected="1 or more", received=str(count), remedy="give 1 or more"
            )
    if seeds is None and (data_seeds or init_seeds):
        return list(itertools.product(range(data_seeds or 1), range(init_seeds or 1)))
    return [(seed, seed) for seed in range(seeds or 1)]


def read_floors(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The floors that a user names, with commas or several times, and always the majority; ``()`` for ``none``; None if
    nothing is given, for the usual floors.

    Raises:
        UsageError: an unknown name, or ``none`` beside others.
    """
    if not given:
        return None
    names = [name.strip() for text in ([given] if isinstance(given, str) else given) for name in text.split(",")]
    for name in names:
        if name not in (*FLOORS, NO_FLOOR):
            raise unknown_name("floor", name, (*FLOORS, NO_FLOOR))
    if NO_FLOOR in names and len(names) > 1:
        raise UsageError(
            "there are floors or there is none", received=", ".join(names), remedy="drop none, or the rest"
        )
    return () if NO_FLOOR in names else tuple(dict.fromkeys((FLOORS[0], *names)))


# By flag; each raises UsageError for a value that its option cannot take.
CHECKS: Checks = {
    "task": check_task,
    "head": check_name,
    "fusion": lambda name: name if name == EVERY_LAYER else OpenWidth.of("fusion", name) or fusion_name(name),
    "method": lambda name: OpenWidth.of("method", name) or method_spelling(name),
    "encoder-lr": check_encoder_rate,
    "from-layer": asked_layer,
    "floor": read_floors,
    "validate-on": check_watched,
}


def check_choices(choices: Mapping[str, Any]) -> None:
    """Check the values of flags, by parameter, before stores are opened; the same UsageErrors as when runs are made."""
    for flag, entry in FIT.items():
        given = choices.get(entry.parameter)
        for value in given if isinstance(given, tuple) else (given,):
            if value is not None:
                entry.check(value)
                if flag in CHECKS:
                    CHECKS[flag](value)
