"""The forecast of a study: for each step whether it is done, and the bytes and time that it still needs.

A missing store is estimated from a small one: some examples of each split, encoded into a temporary folder.

    value of a store = Σ over splits of the sample's value · examples / examples in the sample
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fusionkit.errors import NothingFinishedError
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.cost import CostModel, Sizes
from fusionkit.fit.executor.estimate import Measurements, halved
from fusionkit.fit.executor.plan import START_SECONDS
from fusionkit.io.places import Place, sizes_below
from fusionkit.machine.resources import cores
from fusionkit.plural import counted
from fusionkit.sources import Source
from fusionkit.sources.examples import Examples
from fusionkit.store.manifest import read_manifest
from fusionkit.store.presence import is_complete, is_store, states_path
from fusionkit.study.encode_step import opened_once
from fusionkit.study.fit_step import SweepFit
from fusionkit.study.folder import StudyFolder
from fusionkit.study.run import Data, Known, prepare
from fusionkit.study.steps import Commands
from fusionkit.study.study import SourceStep, Study, SweepStep

THERE, BEGUN, MISSING = "there", "begun", "to do"
SAMPLE = {"train": 64, "validation": 32, "test": 16}
CARVED = 0.1  # share of train, if there is no validation


@dataclass(frozen=True)
class StepForecast:
    """The work that is left for one step.

    Attributes:
        state: ``there``, ``begun`` or ``to do``. bytes, seconds: those that are left; None if they are unknown.
        told: a note for the user.
    """

    step: str
    state: str
    bytes: int | None = None
    seconds: float | None = None
    told: str = ""


def forecast_study(
    study: Study, work: StudyFolder, commands: Commands, known: Known | None = None
) -> list[StepForecast]:
    """The forecast of each step, in order; nothing is kept.

    Raises:
        UsageError, DataError, EncoderError: as when the study is run.
    """
    work.check()
    data = opened_once()
    prepared = prepare(study, work, commands, known, data)
    with tempfile.TemporaryDirectory(prefix="fusionkit-run-") as folder:
        planner = _Planner(study, work, commands, Path(folder), data)
        found = [planner.encode(name, f"encode {name}" in prepared.encoded) for name in study.sources]
        found += [planner.fit(sweep, prepared.fittings[name]) for name, sweep in study.sweeps.items()]
    # A table, figures and the page take seconds at most; they are made again if anything before them is.
    changed = any(each.state != THERE for each in found)
    for step in prepared.steps[len(found) :]:
        there = not changed and step.is_done(prepared.ledger.step(step.name))
        found.append(StepForecast(step.name, THERE if there else MISSING))
    return found


class _Planner:
    """Estimates of one study; the sample stores of its missing sources are in a temporary folder."""

    def __init__(self, study: Study, work: StudyFolder, commands: Commands, folder: Path, data: Data) -> None:
        self._study, self._work, self._commands, self._folder, self._data = study, work, commands, folder, data
        self._stores: dict[str, SourceStore] = {}
        self._ready: set[str] = set()  # sweeps whose runs are all there
        self._measured = Measurements()  # of all sweeps together

    def encode(self, name: str, done: bool) -> StepForecast:
        """The forecast of a source's step."""
        place = self._work.store(name)
        if is_complete(place):  # also one that this study has not checked yet: the run will find it complete
            self._stores[name] = store = complete_store(place)
            told = f"{store.bytes / 1e6:,.0f} MB" + (
                "" if done else "; the run will check that it was made from this source"
            )
            return StepForecast(f"encode {name}", THERE, 0, 0.0, told)
        source = self._study.sources[name]
        self._stores[name] = store = sample_store(source, self._data(source), self._folder, self._commands.sample)
        state = BEGUN if is_store(place) else MISSING
        told = f"{counted(store.rows, 'row')}, estimated from a sample"
        return StepForecast(f"encode {name}", state, store.bytes, store.seconds, told)

    def fit(self, sweep: SweepStep, fitting: SweepFit) -> StepForecast:
        """The forecast of a sweep's step: as ``fit --dry-run`` if its stores are there, else over samples of them."""
        name = f"fit {sweep.name}"
        stored = all(is_complete(self._work.store(each)) for each in sweep.sources)
        if stored and set(sweep.begins) <= self._ready:
            runs = self._work.runs(sweep.name)
            try:
                runs_in_all, untrained = len(fitting.sweep.specs), fitting.untrained
            except NothingFinishedError as error:
                return StepForecast(name, MISSING, told=f"left out: {error.what}")
            known = runs_in_all - len(untrained.specs)
            told = f"{known:,} known from records" if known else ""
            if not untrained.specs:
                return StepForecast(name, MISSING, 0, 0.0, told)
            found, _ = self._commands.forecast(fitting.store, untrained, runs, self._measured)
            if not (left := found.runs - found.there):
                self._ready.add(sweep.name)
                if not all(fitting.folder.has(spec.digest) for spec in untrained.specs):
                    return StepForecast(name, BEGUN, None, 0.0, "only floors are left")
                return StepForecast(name, MISSING if known else THERE, 0, 0.0, told or counted(runs_in_all, "run"))
            state = BEGUN if found.there else MISSING
            told = f"{left:,} of {counted(runs_in_all, 'run')}" + (f", {told}" if told else "")
            return StepForecast(name, state, None, found.seconds, told)
        over, cost = sample_fit(sweep, self._work, self._stores, self._commands.trust_remote_code)
        specs = [spec for spec in over.sweep.specs if not spec.is_floor]  # a floor takes almost no time
        self._commands.measure(specs, cost, self._measured)
        share = halved(specs, specs, cost) if over.sweep.halving else dict.fromkeys(specs, 1.0)
        alone = sum(self._measured.factor(spec) * cost.seconds(spec) * share[spec] for spec in specs)
        processes = min(self._commands.workers or cores(), len(specs))
        seconds = min(alone, START_SECONDS + alone / processes)
        return StepForecast(
            name, MISSING, None, seconds, f"{counted(len(over.sweep.specs), 'run')}, measured over a sample"
        )


@dataclass(frozen=True)
class SourceStore:
    """The store of a source, or of a sample of it.

    Attributes:
        place: where it is. examples: by split. rows, bytes, seconds: these, and examples, are those of the whole store.
    """

    place: Place
    examples: Mapping[str, int]
    rows: int
    bytes: int
    seconds: float


def complete_store(place: Place) -> SourceStore:
    splits = read_manifest(place)["splits"]
    examples = {split: int(fields["examples"]) for split, fields in splits.items()}
    rows = sum(fields["rows"] for fields in splits.values())
    return SourceStore(place, examples, rows, sum(sizes_below(place).values()), 0.0)


def sample_store(
    source: SourceStep, data: Source, folder: Path, encode: Callable[[Mapping[str, Any], Path], None]
) -> SourceStore:
    """Encode some examples of each split of a source, drawn uniformly, and extrapolate rows, bytes and time."""
    splits = data.splits
    few, store = folder / "examples" / source.name, folder / f"{source.name}.store"
    few.mkdir(parents=True)
    for split, examples in splits.items():
        chosen = np.sort(np.random.default_rng(0).permutation(examples.num_rows)[: SAMPLE[split]])
        pq.write_table(examples.take(_varied(examples, chosen)), few / f"{split}.parquet")
    encode({**source.options, "source": str(few), "config": None, "revision": None, "columns": None}, store)
    manifest, sizes = read_manifest(store), {split: examples.num_rows for split, examples in splits.items()}
    sampled = manifest["splits"]

    def whole_and_sampled(name: str) -> tuple[float, float]:
        """The rows or tokens of the whole source, and of the sample."""
        whole = sum(fields[name] * (sizes[split] / fields["examples"]) for split, fields in sampled.items())
        return whole, sum(fields[name] for fields in sampled.values())

    (rows, sampled_rows), (tokens, sampled_tokens) = map(whole_and_sampled, ("rows", "tokens"))
    states, total = (sum(sizes_below(path).values()) for path in (states_path(store), store))
    return SourceStore(
        store,
        sizes,
        rows=round(rows),
        bytes=round(total - states + states * rows / sampled_rows),
        seconds=manifest["provenance"]["seconds"] * tokens / sampled_tokens,
    )


def _varied(examples: Examples, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The chosen rows, ascending, and for each column with one value in them the first row with another one.

    A label with a rare class may have one class in a sample, and such a label cannot be learned.
    """
    table, found, start = examples.take(chosen), chosen, 0
    values = [table.column(place).to_pylist() for place in range(table.num_columns)]
    alike = {place: each[0] for place, each in enumerate(values) if all(value == each[0] for value in each)}
    for batch in examples.batches():
        for place, known in list(alike.items()):
            rows = enumerate(batch.column(place).to_pylist(), start)
            other = next((row for row, value in rows if value is not None and value != known), None)
            if other is not None:
                found = np.append(found, other)
                del alike[place]
        if not alike:
            break
        start += batch.num_rows
    return np.unique(found)


def sample_fit(
    sweep: SweepStep, work: StudyFolder, stores: Mapping[str, SourceStore], trust_remote_code: bool = False
) -> tuple[SweepFit, CostModel]:
    """A sweep over sample stores, and the cost model of its runs over the whole stores."""
    chooser = stores[next(iter(sweep.judges), sweep.parts[-1][0])]
    # Initial weights and the choice of examples make no difference in time.
    blocks = tuple(
        {
            name: _watched(value, chooser) if name == "validate_on" and not sweep.is_multi else value
            for name, value in block.items()
            if name not in ("init_from", "draw_from", "init_part")
        }
        for block in sweep.blocks
    )
    parts = tuple((name, share if share and share.endswith("%") else None) for name, share in sweep.parts)
    plain = dataclasses.replace(sweep, blocks=blocks, begins=(), parts=parts)
    fitting = SweepFit(plain, work, {name: stores[name].place for name in sweep.sources})
    sizes = _sizes(sweep, {name: stores[name].examples for name in sweep.sources})
    return fitting, CostModel(SweepContext(fitting.store, trust_remote_code=trust_remote_code), sizes)


def _watched(given: str, store: SourceStore) -> int | str:
    """``validate_on``; a share of validation as a number of the whole store's examples.

    A share that is refused in a run stays, so that it is refused here too.
    """
    stored = store.examples.get("validation")
    if stored is None or not given.endswith("%"):
        return given
    return _count(given, stored)


def _count(part: str, examples: int) -> int:
    """The number of examples of a share, a percentage or a number."""
    return max(round(examples * float(part[:-1]) / 100), 1) if part.endswith("%") else int(part)


def _sizes(sweep: SweepStep, examples: Mapping[str, Mapping[str, int]]) -> Sizes:
    def share(name: str, part: str | None) -> int:
        of_all = examples[name].get("train", 0)
        return of_all if part is None else _count(part, of_all)

    judges = sweep.judges or (tuple(sweep.sources) if sweep.is_multi else (sweep.parts[-1][0],))
    train, validation = sum(share(name, part) for name, part in sweep.parts), 0
    for name in judges if sweep.is_multi else judges[:1]:
        stored = examples[name].get("validation")
        carved = round(CARVED * examples[name].get("train", 0)) if stored is None else 0
        validation += carved if stored is None else stored
        train -= min(carved, train - 1)
    return Sizes(train, validation, sum(examples[name].get("test", 0) for name in judges))
