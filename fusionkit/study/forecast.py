"""What a study would do: each step with what is there, and the bytes and time of what is not."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from fusionkit.fit.executor.measure import Measurements
from fusionkit.fit.executor.plan import START_SECONDS
from fusionkit.machine import cores
from fusionkit.store.manifest import is_complete, is_store
from fusionkit.study.fit_step import SweepFit
from fusionkit.study.folder import StudyFolder
from fusionkit.study.run import prepare
from fusionkit.study.sample import SourceStore, complete_store, sample_fit, sample_store
from fusionkit.study.steps import Commands
from fusionkit.study.study import Study, SweepStep

THERE, BEGUN, MISSING = "there", "begun", "to do"


@dataclass(frozen=True)
class StepForecast:
    """What is left to do of one step.

    Attributes:
        state: ``there``, ``begun`` or ``to do``. bytes, seconds: of what is left; None where nobody can tell.
        told: in words.
    """

    step: str
    state: str
    bytes: int | None = None
    seconds: float | None = None
    told: str = ""


def forecast_study(study: Study, work: StudyFolder, commands: Commands) -> list[StepForecast]:
    """Each step, in order; nothing is kept.

    Raises:
        UsageError, DataError, EncoderError: what the run itself would refuse.
    """
    work.check()
    ledger, fittings, steps, done = prepare(study, work, commands)
    with tempfile.TemporaryDirectory(prefix="fusionkit-run-") as folder:
        planner = _Planner(study, work, commands, Path(folder))
        found = [planner.encode(name, f"encode {name}" in done) for name in study.sources]
        found += [planner.fit(sweep, fittings[name]) for name, sweep in study.sweeps.items()]
    # A table, figures and the page take seconds at most; they are made anew where anything before them is.
    changed = any(each.state != THERE for each in found)
    for step in steps[len(found) :]:
        there = not changed and step.is_done(ledger.step(step.name))
        found.append(StepForecast(step.name, THERE if there else MISSING))
    return found


class _Planner:
    """Estimates of one study; stores of samples of its missing sources lie in a folder aside."""

    def __init__(self, study: Study, work: StudyFolder, commands: Commands, folder: Path) -> None:
        self._study, self._work, self._commands, self._folder = study, work, commands, folder
        self._stores: dict[str, SourceStore] = {}
        self._ready: set[str] = set()  # sweeps of which every run is there
        self._measured = Measurements()  # of all sweeps together

    def encode(self, name: str, done: bool) -> StepForecast:
        """The step of a source."""
        place = self._work.store(name)
        if is_complete(place):  # also one that this study has not looked at yet: it will be found complete
            self._stores[name] = store = complete_store(place)
            told = f"{store.bytes / 1e6:,.0f} MB" + ("" if done else "; whether it is this source's will be looked at")
            return StepForecast(f"encode {name}", THERE, 0, 0.0, told)
        self._stores[name] = store = sample_store(self._study.sources[name], self._folder, self._commands.encode)
        state = BEGUN if is_store(place) else MISSING
        told = f"{store.rows:,} rows, told from a sample"
        return StepForecast(f"encode {name}", state, store.bytes, store.seconds, told)

    def fit(self, sweep: SweepStep, fitting: SweepFit) -> StepForecast:
        """The step of a sweep: as ``fit --dry-run`` where its stores are there, else over samples of them."""
        name = f"fit {sweep.name}"
        stored = all(is_complete(self._work.store(each)) for each in sweep.sources)
        if stored and set(sweep.begins) <= self._ready:
            runs = self._work.runs(sweep.name)
            found = self._commands.forecast(fitting.store, fitting.sweep, runs, self._measured)
            if not (left := found.runs - found.there):
                self._ready.add(sweep.name)
                return StepForecast(name, THERE, 0, 0.0, f"{found.runs:,} runs")
            state = BEGUN if found.there else MISSING
            return StepForecast(name, state, None, found.seconds, f"{left:,} of {found.runs:,} runs")
        over, cost = sample_fit(sweep, self._work, self._stores)
        specs = over.sweep.specs
        self._measured.sample(specs, cost)
        alone = sum(self._measured.factor(spec) * cost.seconds(spec) for spec in specs)
        processes = min(self._commands.workers or cores(), len(specs))
        seconds = min(alone, START_SECONDS + alone / processes)
        return StepForecast(name, MISSING, None, seconds, f"{len(specs):,} runs, measured over a sample")
