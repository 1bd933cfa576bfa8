"""What a sweep will take, before it starts: runs, units, processes, time and memory.

    seconds = counted seconds · factor          factor = seconds of an epoch / counted seconds of an epoch

Symbols: the counted seconds are those of :mod:`fusionkit.fit.executor.cost`. Each kind of run has a factor: how many
times longer than counted it takes on this machine. The seconds of an epoch come from finished runs on record. Without
such runs they come from a short sample: a few runs of the kind train for three epochs on some of the examples, and the
first epoch is not counted.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from fusionkit.dataset.stores import Stores
from fusionkit.fit.executor.cost import RATE, CostModel
from fusionkit.fit.executor.plan import START_SECONDS, makespan, plan
from fusionkit.fit.executor.prepare import prepare
from fusionkit.fit.executor.sample import LEAST, PLAIN, epoch_times, sample_of, scored_part, size_of
from fusionkit.fit.grouped import grouped
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.fit.sweep.fixed_draws import FixedDraws
from fusionkit.fit.train.halving import epochs_share, rivals_of, setting_of
from fusionkit.io.locks import this_process
from fusionkit.machine.devices import device_of
from fusionkit.machine.memory import out_of_memory
from fusionkit.runs.claims import Claims
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

# The fields that a factor depends on; the counted seconds cover sizes, epochs and layers.
KIND = ("task", "method", "fusion", "head", "joint_fusion", "freeze", "batch_size", "optimizer", "compute_dtype")
MEASURED_SECONDS = 5.0  # after which no further kind is sampled
SAMPLE_SECONDS = 0.05  # counted seconds of a sample's epoch
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
        runs: the number of runs. there: those that need not be trained. failed: those with a failed record, which are
            counted in ``there`` unless they are tried again. elsewhere: missing runs that another process is training.
        units, workers: of the missing runs. seconds: until the last is done, if nothing else runs.
        memory: bytes that one process takes at most. kinds: the number of kinds of missing runs, ``sampled`` of them
            measured, now or by runs on record. parts: the missing runs grouped by the options :data:`SHOWN`, each group
            with its number of runs and their seconds in one process.
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


def halved(specs: Sequence[RunSpec], missing: Sequence[RunSpec], cost: CostModel) -> dict[RunSpec, float]:
    """The share of its epochs that each missing run of a sweep trains under halving, on average over its rivals."""
    settings = {key: len({*map(setting_of, alike)}) for key, alike in grouped(specs, rivals_of).items()}
    return {spec: epochs_share(settings[rivals_of(spec)], cost.epochs(spec), spec.validate_every) for spec in missing}


def forecast(
    store: Stores,
    specs: Sequence[RunSpec],
    runs: RunsFolder,
    starts: Sequence[TrainedRun] = (),
    draws: Sequence[FixedDraws] = (),
    workers: int | None = 1,
    retry_failed: bool = False,
    device: str = "cpu",
    known: Measurements | None = None,
    halving: bool = False,
    trust_remote_code: bool = False,
) -> tuple[Forecast, list[str]]:
    """What :func:`fusionkit.fit.fit` would take, and the notes that it would show. Arguments and errors are the same.

    ``known``: the measurements of other sweeps; new ones are added to it.
    """
    specs = [spec for spec in specs if not spec.is_floor]  # they take next to no time
    how = (device_of(device), halving)
    prepared = prepare(store, specs, runs, starts, draws, retry_failed, *how, trust_remote_code=trust_remote_code)
    claims = Claims(runs.path, this_process())
    missing, context = prepared.missing, prepared.context
    measured, cost = known or Measurements(), CostModel(context)
    records = {spec: runs.record(spec) for spec in prepared.there}
    measured.read({spec: record for spec, record in records.items() if record is not None}, cost)
    measured.sample(missing, cost)
    seconds = {spec: measured.factor(spec) * cost.seconds(spec) for spec in missing}
    if halving:
        seconds = {spec: seconds[spec] * share for spec, share in halved(specs, missing, cost).items()}
    chosen = plan(prepared, workers)
    units = [sum(seconds[spec] for spec in unit) for unit in chosen.units]
    begin = START_SECONDS + context.seconds if chosen.opening is not None else 0.0
    parts = grouped(missing, attrgetter(*SHOWN))
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
    return found, [*prepared.notes, *chosen.notes]


class Measurements:
    """The known factors of kinds of runs, for one sweep or several. After ``seconds`` no further kind is sampled."""

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
        """Measure the unknown kinds, those with the most work first, until the time is up."""
        unknown = grouped((spec for spec in specs if not self.knows(spec)), kind_of)
        for kind, alike in sorted(unknown.items(), key=lambda each: -sum(map(cost.seconds, each[1]))):
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
        """The factor of a run's kind; if unknown the mean of the known ones, or 1 if there are none."""
        known = self._known
        return known.get(kind_of(spec), float(np.mean(list(known.values()))) if known else 1.0)

    def knows(self, spec: RunSpec) -> bool:
        """Whether the factor of this run's kind is known."""
        return kind_of(spec) in self._known


def kind_of(spec: RunSpec) -> Kind:
    """The kind of a run: runs of one kind have the same factor."""
    return tuple(getattr(spec, name) for name in KIND)


def sampled(spec: RunSpec, runs: int, cost: CostModel) -> float:
    """The measured factor of a run where ``runs`` like it are trained together; raises if memory runs out."""
    # An epoch goes over the sample once: the user's number of steps may take hours.
    spec = dataclasses.replace(spec, steps_per_epoch=None)
    share = min(SAMPLE_SECONDS * RATE / (runs * cost.products(spec)), 1.0)
    learned = max(round(share * cost.learned(spec)), min(spec.batch_size, cost.learned(spec)))
    data = cost.data(spec)
    part = scored_part(sample_of(data, learned), share * cost.watched(spec) / max(size_of(data.validation), 1), LEAST)
    plain = dataclasses.replace(spec, epochs=EPOCHS, validate_every=1, **PLAIN)
    specs = [dataclasses.replace(plain, init_seed=seed) for seed in range(runs)]
    times, _ = epoch_times(cost.context, specs, part, time.perf_counter)
    learned, scored = (sum(map(len, split.streams)) for split in (part.train, part.validation))
    products = cost.products_over(plain, learned, scored)
    # The first epoch of all runs is not counted.
    return (times[-1] - times[runs]) * RATE / ((EPOCHS - 1) * runs * products)
