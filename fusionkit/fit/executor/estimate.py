"""What a sweep will take, before it starts: runs, units, processes, time and memory.

    seconds = counted seconds · factor          factor = seconds of an epoch / counted seconds of an epoch

Symbols: the counted seconds are those of :mod:`fusionkit.fit.executor.cost`; each kind of run has a factor: how many
times longer than counted it takes on this machine. The seconds of an epoch are those of finished runs where there are
some on record, else those of a short sample: a few runs of the kind, three epochs over some of the examples, the first
of which is not counted.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusionkit.dataset.stores import Stores
from fusionkit.fit.executor.cost import RATE, CostModel
from fusionkit.fit.executor.plan import START_SECONDS, makespan, plan
from fusionkit.fit.executor.prepare import prepare
from fusionkit.fit.executor.sample import LEAST, PLAIN, some
from fusionkit.fit.model.warm_start import WarmStart
from fusionkit.fit.sweep.fixed_draws import FixedDraws
from fusionkit.fit.train.halving import epochs_share, rivals_of, setting_of
from fusionkit.machine.devices import device_of
from fusionkit.machine.memory import out_of_memory
from fusionkit.runs.claims import Claims, this_process
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

# What a factor depends on; counting takes care of sizes, epochs and layers.
KIND = ("task", "method", "fusion", "head", "joint_fusion", "freeze", "batch_size", "optimizer", "compute_dtype")
MEASURED_SECONDS = 5.0  # after which no further kind is sampled
SAMPLE_SECONDS = 0.05  # of a sample's epoch, as counted
EPOCHS, RUNS = 3, 8  # of a sample

Kind = tuple[Any, ...]
SHOWN = (
    "task", "label", "method", "fusion", "fusion_layers", "head", "shots", "epochs", "max_steps", "batch_size",
    "compute_dtype",
)  # fmt: skip


@dataclass(frozen=True)
class Forecast:
    """What a sweep will take.

    Attributes:
        runs: all of them. there: those that need not be trained, ``failed`` of them failed. elsewhere: those that
            another process is at. units, workers: of the others. seconds: until the last is done, if nothing else runs.
        memory: bytes that one process takes at most. kinds: how many kinds of runs there are, ``sampled`` of them
            measured, now or by runs on record. parts: the runs by what they cost, with the seconds of all of them in
            one process.
    """

    runs: int
    there: int
    failed: int
    elsewhere: int
    units: int
    workers: int
    seconds: float
    memory: int
    kinds: int
    sampled: int
    parts: list[dict[str, Any]]


def forecast(
    store: Stores,
    specs: Sequence[RunSpec],
    runs: RunsFolder,
    starts: Sequence[WarmStart] = (),
    draws: Sequence[FixedDraws] = (),
    workers: int | None = 1,
    retry_failed: bool = False,
    device: str = "cpu",
    known: Measurements | None = None,
    halving: bool = False,
) -> tuple[Forecast, list[str]]:
    """What :func:`fusionkit.fit.fit` would take, and what it would say; arguments and errors are its own.

    ``known`` is what was measured for other sweeps; what is measured now is added to it.
    """
    specs = [spec for spec in specs if not spec.is_floor]  # a moment's work
    prepared = prepare(store, specs, runs, starts, draws, retry_failed, device_of(device), halving)
    claims = Claims(runs.path, this_process())
    missing, context = prepared.missing, prepared.context
    measured, cost = known or Measurements(), CostModel(context)
    records = {spec: runs.record(spec) for spec in prepared.there}
    measured.read({spec: record for spec, record in records.items() if record is not None}, cost)
    measured.sample(missing, cost)
    seconds = {spec: measured.factor(spec) * cost.seconds(spec) for spec in missing}
    if halving:
        settings: dict[Any, set[Any]] = {}
        for spec in specs:
            settings.setdefault(rivals_of(spec), set()).add(setting_of(spec))
        for spec in missing:
            count = len(settings[rivals_of(spec)])
            seconds[spec] *= epochs_share(count, cost.epochs(spec), spec.validate_every)
    chosen = plan(prepared, workers)
    units = [sum(seconds[spec] for spec in unit) for unit in chosen.units]
    begin = START_SECONDS + context.seconds if chosen.workers > 1 else 0.0
    parts: dict[tuple[Any, ...], list[RunSpec]] = {}
    for spec in missing:
        parts.setdefault(tuple(getattr(spec, name) for name in SHOWN), []).append(spec)
    kinds = {kind_of(spec): spec for spec in missing}
    found = Forecast(
        runs=len(specs),
        there=len(prepared.there),
        failed=len(prepared.failed),
        elsewhere=sum(claims.holder(spec.digest) is not None for spec in missing),
        units=len(chosen.units),
        workers=chosen.workers,
        seconds=begin + makespan(units, chosen.workers),
        memory=cost.memory(chosen.units),
        kinds=len(kinds),
        sampled=sum(map(measured.knows, kinds.values())),
        parts=[
            dict(zip(SHOWN, key, strict=True)) | {"runs": len(alike), "seconds": sum(map(seconds.__getitem__, alike))}
            for key, alike in parts.items()
        ],
    )
    return found, prepared.notes


class Measurements:
    """The factors of the kinds that were met, for one sweep or several; samples may take so many ``seconds``."""

    def __init__(self, seconds: float = MEASURED_SECONDS) -> None:
        self._left = seconds
        self._known: dict[Kind, float] = {}

    def read(self, records: Mapping[RunSpec, Mapping[str, Any]], cost: CostModel) -> None:
        """Take the factors of finished runs from their records."""
        found: dict[Kind, list[float]] = {}
        for spec, record in records.items():
            if seconds := record.get("epoch_seconds"):
                epochs = min(float(len(seconds)), cost.trained(spec))  # a run may have stopped early
                counted = epochs * cost.products(spec) / RATE
                found.setdefault(kind_of(spec), []).append(seconds[-1] / counted)
        self._known |= {kind: float(np.mean(factors)) for kind, factors in found.items()}

    def sample(self, specs: Sequence[RunSpec], cost: CostModel) -> None:
        """Measure kinds that are not known, those with most to do first, until the time is up."""
        missing: dict[Kind, list[RunSpec]] = {}
        for spec in specs:
            if kind_of(spec) not in self._known:
                missing.setdefault(kind_of(spec), []).append(spec)
        for kind, alike in sorted(missing.items(), key=lambda each: -sum(map(cost.seconds, each[1]))):
            if self._known and self._left <= 0:
                return
            began = time.monotonic()
            together = min(len(alike), RUNS) if not alike[0].is_alone else 1
            try:
                self._known[kind] = sampled(alike[0], together, cost)
            except Exception as error:
                if out_of_memory(error) is None:
                    raise
            self._left -= time.monotonic() - began

    def factor(self, spec: RunSpec) -> float:
        """Of a run's kind; the mean of the others where it is not known."""
        known = self._known
        return known.get(kind_of(spec), float(np.mean(list(known.values()))) if known else 1.0)

    def knows(self, spec: RunSpec) -> bool:
        """Whether the kind of this run was met."""
        return kind_of(spec) in self._known


def kind_of(spec: RunSpec) -> Kind:
    """What runs have in common whose factors are the same."""
    return tuple(getattr(spec, name) for name in KIND)


def sampled(spec: RunSpec, runs: int, cost: CostModel) -> float:
    """The factor of a run where so many like it are trained together; errors are those of memory that runs out."""
    data = cost.context.data(spec)
    # An epoch of the sample goes over the sample once: steps that the user gave may be hours.
    spec = dataclasses.replace(spec, steps_per_epoch=None)
    share = min(SAMPLE_SECONDS * RATE / (runs * cost.products(spec)), 1.0)
    learned = max(round(share * cost.learned(spec)), min(spec.batch_size, cost.learned(spec)))
    part = dataclasses.replace(
        data,
        train=some(data.train, learned),
        validation=some(data.validation, max(round(share * cost.watched(spec)), LEAST)),
        test=None,
        tests={},
    )
    plain = dataclasses.replace(spec, epochs=EPOCHS, validate_every=1, **PLAIN)
    specs = [dataclasses.replace(plain, init_seed=seed) for seed in range(runs)]
    ends: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scores of a handful of examples are often undefined
        for _ in cost.context.train(specs, lambda _: ends.append(time.perf_counter()), part):
            pass
    learned, scored = (sum(map(len, split.streams)) for split in (part.train, part.validation))
    products = cost.products_over(plain, learned, scored)
    return (ends[-1] - ends[runs - 1]) * RATE / ((EPOCHS - 1) * runs * products)
