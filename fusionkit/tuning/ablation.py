"""A trained run scored without its method's parts in a span of layers, for every span; nothing is trained again.

    fall(a, b) = 1 − score without the parts of layers a … b / score with all

Symbols: ``a ≤ b`` layers that have parts; scores are the tasks' own, on validation unless test is asked for.
Source: figure 8 of the adapters report, after Houlsby et al. (2019), figure 6.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from fusionkit.dataset.draws import watched_split
from fusionkit.dataset.stores import source_of
from fusionkit.errors import UsageError
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.model.checkpoint import open_run
from fusionkit.fit.train.decisions import score
from fusionkit.io.files import read_json
from fusionkit.metrics import split_score
from fusionkit.names import MEAN
from fusionkit.plural import counted
from fusionkit.runs.ablations import Ablation, write_ablation
from fusionkit.runs.folder import RECORD
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.store.layer_positions import positions_of
from fusionkit.tasks import ALONE
from fusionkit.tuning.live import live_data
from fusionkit.tuning.tokens import TokenSource
from fusionkit.tuning.trained import tuned_of, upper_layers


def ablate(
    folder: Path,
    stores: Mapping[str, Store],
    split: str = "validation",
    limit: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
    trust_remote_code: bool = False,
    device: str = "cpu",
) -> Ablation:
    """Score a run without its parts in every span of layers, and write the scores beside its record.

    Args:
        folder: of the run. stores: those that it was fitted on, by digest. split: ``validation`` or ``test``.
        limit: the number of validation examples per task. tell: called with the progress, after each tenth span.
        trust_remote_code: whether the run's encoder may bring code of its own. device: ``auto``, ``cpu`` or ``cuda:0``.

    Raises:
        UsageError: a run whose method has no parts by layer, or a store or split that is not there. EncoderError: its
            encoder cannot be loaded. StoreError: its delta is damaged.
    """
    run, spec = open_run(folder), RunSpec.from_dict(read_json(folder / RECORD)["spec"])
    if run.delta is None:
        raise _without_parts(spec)
    source = source_of(spec, stores)
    tuned = tuned_of(run, device=device, trust_remote_code=trust_remote_code)
    attached = tuned.attached
    if attached.skip is None:
        raise _without_parts(spec)
    data = SweepContext(source).load(spec)
    upper = upper_layers(spec, source, tuned)
    live = live_data(data, TokenSource(source), tuned.encoder, source.layers, upper=upper, use=attached.use)
    chosen = live.test if split == "test" else watched_split(dataclasses.replace(spec, validate_on=limit), live)
    if chosen is None or not len(chosen):
        raise UsageError(f"the run's data has no {split} split with labels", remedy="choose the other --split")
    positions, layers = positions_of(run.layers, source.layers), sorted(attached.part_layers)

    def scored(without: Sequence[int]) -> dict[str, tuple[str, float]]:
        assert attached.skip is not None
        attached.skip(without)
        with torch.no_grad():
            found = score(run.whole, live, chosen, positions)
        return _own_scores(found, list(live.parts))

    whole = scored(())
    every = [(a, b) for at, a in enumerate(layers) for b in layers[at:]]
    spans = []
    for number, (a, b) in enumerate(every, 1):
        found = scored([layer for layer in layers if a <= layer <= b])
        spans.append((a, b, {task: value for task, (_, value) in found.items()}))
        if number % 10 == 0 or number == len(every):
            tell(f"{number} of {counted(len(every), 'span')}")
    made = Ablation(
        spec.digest,
        spec.method,
        split,
        sum(map(len, chosen.streams)),
        layers,
        {task: metric for task, (metric, _) in whole.items()},
        {task: value for task, (_, value) in whole.items()},
        spans,
        limit,
    )
    write_ablation(folder, made)
    return made


def _own_scores(found: Mapping[str, float], tasks: Sequence[str]) -> dict[str, tuple[str, float]]:
    """Each task's own score with its name; for several tasks their mean too."""
    if tasks == [ALONE]:
        return {ALONE: next(iter(found.items()))}
    own: dict[str, tuple[str, float]] = {MEAN: (MEAN, found[MEAN])}
    for name, value in found.items():
        task, metric = split_score(name, tasks)
        if task is not None:
            own.setdefault(task, (metric, value))
    return own


def _without_parts(spec: RunSpec) -> UsageError:
    return UsageError(
        f"the method {spec.method} has no parts by layer that could be taken away",
        expected="a run of houlsby, pals, low-rank, prefix, lora or ia3",
        received=spec.method,
        remedy="choose such a run",
    )
