"""A sweep made of blocks of choices, from flags or a file: the runs of all blocks, each of them once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusionkit.dataset.mixture import Mix
from fusionkit.errors import unknown_name
from fusionkit.fit.model.warm_start import WarmStart, open_starts
from fusionkit.fit.sweep.fixed_draws import FixedDraws, open_draws
from fusionkit.fit.sweep.grid import expand
from fusionkit.specs import PARTS, RunSpec
from fusionkit.store import Store


@dataclass
class Sweep:
    """Runs, and what they begin from.

    Attributes:
        specs: each once, in order of the blocks. starts: the finished runs that some begin from. draws: the examples
            that some name by a digest.
    """

    specs: list[RunSpec] = field(default_factory=list)
    starts: list[WarmStart] = field(default_factory=list)
    draws: list[FixedDraws] = field(default_factory=list)


def expand_blocks(store: Store | Mix, blocks: Sequence[Mapping[str, Any]]) -> Sweep:
    """The union of the blocks' runs.

    Args:
        blocks: choices of :func:`fusionkit.fit.sweep.grid.expand` by parameter, but for three that are as the user
            gives them: ``init_from``, places of runs; ``draw_from``, one of runs or of a list; ``freeze``, parts.

    Raises:
        UsageError: what :func:`~fusionkit.fit.sweep.grid.expand` refuses, and places that hold no such thing.
    """
    sweep = Sweep()
    begun: dict[tuple[str, ...], list[WarmStart]] = {}
    drawn: dict[str, list[FixedDraws]] = {}
    for block in blocks:
        choices = dict(block)
        places, source, frozen = choices.pop("init_from", ()), choices.pop("draw_from", None), choices.pop("freeze", ())
        for part in frozen:
            if part not in PARTS:
                raise unknown_name("part to freeze", part, PARTS)
        if places not in begun:
            begun[places] = open_starts(places)
        if source is not None and source not in drawn:
            drawn[source] = open_draws(source)
        sweep.specs += expand(
            store,
            starts=begun[places],
            draws=drawn[source] if source is not None else (),
            freeze=(frozen[0] if len(set(frozen)) == 1 else "both") if frozen else None,
            **choices,
        )
    sweep.specs = list(dict.fromkeys(sweep.specs))
    sweep.starts = [start for found in begun.values() for start in found]
    sweep.draws = [one for found in drawn.values() for one in found]
    return sweep
