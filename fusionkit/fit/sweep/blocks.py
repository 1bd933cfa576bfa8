"""A sweep made of blocks of choices, from flags or a file: the runs of all blocks, each run once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from fusionkit.dataset.stores import Stores, guess_notes
from fusionkit.errors import UsageError, unknown_name
from fusionkit.fit.model.checkpoint import TrainedRun, open_runs
from fusionkit.fit.sweep.budget import with_widths
from fusionkit.fit.sweep.checks import read_floors
from fusionkit.fit.sweep.fixed_draws import FixedDraws, open_draws
from fusionkit.fit.sweep.floors import floors_of
from fusionkit.fit.sweep.grid import expand
from fusionkit.fit.sweep.method_choices import over_frozen_encoder
from fusionkit.fit.sweep.open_widths import refuse_idle
from fusionkit.options.entry import joined
from fusionkit.specs import ENCODER, FROZEN, PARTS, RunSpec


@dataclass
class Sweep:
    """Runs, and the runs that they start from.

    Attributes:
        specs: the runs, each once, in the order of the blocks. starts: the finished runs from which some of them start.
        draws: the examples that some specs name by a digest. halving: whether the worse settings stop early, in all
            blocks.
        notes: on columns that were guessed among several.
    """

    specs: list[RunSpec]
    starts: list[TrainedRun]
    draws: list[FixedDraws]
    halving: bool = False
    notes: list[str] = field(default_factory=list)


def expand_blocks(store: Stores, blocks: Sequence[Mapping[str, Any]]) -> Sweep:
    """The union of the blocks' runs.

    Args:
        blocks: choices of :func:`fusionkit.fit.sweep.grid.expand` by parameter, with its errors. Six are as the user
            gives them: ``init_from``, places of runs; ``draw_from``, a place of runs or of a list, or places of runs;
            ``freeze``, parts; ``halving``, which holds for all blocks if one has it; ``floor``, whose runs follow those
            of their block; ``budget_per_task``, which sets widths that are left out
            (:mod:`fusionkit.fit.sweep.budget`).
    """
    starts = {places: open_runs(places) for places in dict.fromkeys(block.get("init_from", ()) for block in blocks)}
    sources = dict.fromkeys(block.get("draw_from") for block in blocks)
    draws = {source: [] if source is None else open_draws(source) for source in sources}
    refuse_idle(blocks)
    specs = list[RunSpec]()
    for block in chain.from_iterable(with_widths(store, each) for each in blocks):
        choices = {name: value for name, value in block.items() if name != "halving"}
        floors = read_floors(choices.pop("floor", None))
        frozen = set(choices.pop("freeze", ()))
        if ENCODER in frozen:
            frozen.remove(ENCODER)
            choices["methods"] = tuple(map(over_frozen_encoder, choices.get("methods") or (FROZEN,)))
        for part in sorted(frozen - {*PARTS}):
            raise unknown_name("part to freeze", part, PARTS)
        made = expand(
            store,
            starts=starts[choices.pop("init_from", ())],
            draws=draws[choices.pop("draw_from", None)],
            freeze="both" if len(frozen) > 1 else next(iter(frozen), None),
            **choices,
        )
        specs += [*made, *floors_of(made, floors)]
    once = list(dict.fromkeys(specs))
    halving = any(block.get("halving") for block in blocks)
    if halving and any(spec.mdl for spec in once):
        raise UsageError("--halving would stop blocks of an online code", remedy="leave --halving or --mdl out")
    if halving and any(spec.control for spec in once):
        raise UsageError(
            "--halving may keep one rate of a run and another of its control, and only the same can be compared",
            remedy="leave --halving or --control out",
        )
    notes = [guess_notes(store, joined(block.get("task")), joined(block.get("label"))) for block in blocks]
    return Sweep(
        specs=once,
        starts=list(chain.from_iterable(starts.values())),
        draws=list(chain.from_iterable(draws.values())),
        halving=halving,
        notes=list(dict.fromkeys(chain.from_iterable(notes))),
    )
