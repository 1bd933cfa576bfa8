"""What a sweep would take over stores that are not there yet: a few steps over a sample, scaled to all of it.

    Σ over runs of  t₀ + e · k · step + (s · v + v_all + tests) · scored       (fit/executor/profile.py)

Symbols: ``t₀``, ``step``, ``scored`` measured over the sample; e epochs, k steps in each, s scorings of v examples,
counted from the sources as they are.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.estimate import TIMING_SECONDS
from fusionkit.fit.executor.parallelism import START_SECONDS
from fusionkit.fit.executor.profile import Cost, kind_of, measure
from fusionkit.fit.train.options import length_of
from fusionkit.machine import cores
from fusionkit.places import Place
from fusionkit.sources import open_source
from fusionkit.specs import RunSpec
from fusionkit.study.fit_step import SweepFit
from fusionkit.study.folder import StudyFolder
from fusionkit.study.study import SourceStep, SweepStep

SAMPLE = {"train": 256, "validation": 96, "test": 32}
MEASURED_SECONDS = 20.0  # after which no further kind of run is measured; the others take the mean of those that were
CARVED = 0.1  # of train, where there is no validation
Counts = dict[str, int]


def counts_of(splits: Mapping[str, Mapping[str, Any]]) -> Counts:
    """Examples a split."""
    return {split: int(fields["examples"]) for split, fields in splits.items()}


def sample_of(source: SourceStep, folder: Path) -> Path:
    """Some examples of each split of a source, drawn uniformly, as a folder of Parquet files."""
    options = source.options
    mlm = options.get("task") == "mlm"
    opened = open_source(
        options["source"], config=options.get("config"), revision=options.get("revision"), lines=mlm
    )  # fmt: skip
    folder.mkdir(parents=True)
    for split, examples in opened.splits.items():
        chosen = np.random.default_rng(0).permutation(examples.num_rows)[: SAMPLE[split]]
        pq.write_table(examples.take(np.sort(chosen)), folder / f"{split}.parquet")
    return folder


@dataclass(frozen=True)
class _Sizes:
    """Examples that a sweep has: to learn from, to choose the epoch by, to score once."""

    train: int
    validation: int
    tests: int


def rehearse(
    sweep: SweepStep, work: StudyFolder, places: Mapping[str, Place], counts: Mapping[str, Counts], workers: int | None
) -> tuple[int, float]:
    """How many runs a sweep has, and their seconds by so many processes.

    Args:
        places: stores of samples, or whole ones, by the names of sources. counts: examples of the sources.
        workers: None is one a core.
    """
    sizes = _sizes(sweep, counts)
    # Where runs begin, and which examples they draw, makes no difference in time.
    blocks = tuple(
        {name: value for name, value in block.items() if name not in ("init_from", "draw_from", "init_part")}
        for block in sweep.blocks
    )
    parts = tuple((name, share if share and share.endswith("%") else None) for name, share in sweep.parts)
    fitting = SweepFit(dataclasses.replace(sweep, blocks=blocks, begins=(), parts=parts), work, places)
    materials = SweepContext(fitting.store)
    specs = fitting.sweep.specs
    kinds: dict[RunSpec, list[tuple[RunSpec, int]]] = {}
    for spec in specs:
        learned = sizes.train
        if spec.shots is not None:
            learned = min(spec.shots * materials.data(spec).classes, learned)
        kinds.setdefault(kind_of(spec, learned), []).append((spec, learned))
    known: dict[RunSpec, Cost] = {}
    began = time.monotonic()
    for kind, runs in kinds.items():
        if not known or time.monotonic() - began < MEASURED_SECONDS:
            known[kind] = measure(kind, min(len(runs), 4), materials, TIMING_SECONDS)
    total = 0.0
    for kind, runs in kinds.items():
        costs = [known[kind]] if kind in known else list(known.values())
        total += sum(_seconds(cost, spec, learned, sizes) for cost in costs for spec, learned in runs) / len(costs)
    at_once = max(min(workers or cores(), len(specs)), 1)
    alone = total <= START_SECONDS * at_once
    return len(specs), total if alone else total / at_once + START_SECONDS


def _sizes(sweep: SweepStep, counts: Mapping[str, Counts]) -> _Sizes:
    def share(name: str, part: str | None) -> int:
        of_all = counts[name].get("train", 0)
        if part is None:
            return of_all
        return max(round(of_all * float(part[:-1]) / 100), 1) if part.endswith("%") else int(part)

    judges = sweep.judges or (sweep.parts[-1][0],)
    train = sum(share(name, part) for name, part in sweep.parts)
    validation = counts[judges[0]].get("validation")
    if validation is None:
        validation = round(CARVED * counts[judges[0]].get("train", 0))
        train -= min(validation, train - 1)
    return _Sizes(train, validation, sum(counts[name].get("test", 0) for name in judges))


def _seconds(cost: Cost, spec: RunSpec, learned: int, sizes: _Sizes) -> float:
    watched = min(spec.validate_on or sizes.validation, sizes.validation)
    length = length_of(spec, learned)
    times = -(-length.epochs // spec.validate_every)
    return cost.once + length.steps * cost.step + (times * watched + sizes.validation + sizes.tests) * cost.scored
