"""What a study would do: each step with what is there, and the bytes and time of what is not."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fusionkit.fit.executor.estimate import Measurements
from fusionkit.fit.executor.plan import START_SECONDS
from fusionkit.machine import cores
from fusionkit.store.manifest import is_complete, is_store
from fusionkit.study.commands import Commands
from fusionkit.study.fit_step import SweepFit
from fusionkit.study.folder import Ledger, StudyFolder
from fusionkit.study.preflight import preflight
from fusionkit.study.run import is_encoded, steps_of
from fusionkit.study.sample import SourceStore, complete_store, sample_fit, sample_store
from fusionkit.study.steps import Step
from fusionkit.study.study import Study, SweepStep

THERE, BEGUN, MISSING = "there", "begun", "to do"


@dataclass(frozen=True)
class Foreseen:
    """One step.

    Attributes:
        state: ``there``, ``begun`` or ``to do``. bytes, seconds: of what is left; None where nobody can tell.
        told: in words.
    """

    step: str
    state: str
    bytes: int | None = None
    seconds: float | None = None
    told: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def forecast_study(study: Study, work: StudyFolder, commands: Commands) -> list[Foreseen]:
    """Each step, in order; nothing is kept.

    Raises:
        UsageError, DataError, EncoderError: what the run itself would refuse.
    """
    work.check()
    ledger = Ledger(work)
    fittings = {name: SweepFit(sweep, work) for name, sweep in study.sweeps.items()}
    steps = {step.name: step for step in steps_of(study, work, commands, fittings)}
    done = [step.name for step in steps.values() if is_encoded(step, ledger)]
    preflight(study, fittings, done)
    with tempfile.TemporaryDirectory(prefix="fusionkit-run-") as folder:
        planner = _Planner(study, work, commands, Path(folder))
        found = [planner.encode(name, steps[f"encode {name}"].name in done) for name in study.sources]
        for name, sweep in study.sweeps.items():
            found.append(planner.fit(sweep, fittings[name]))
    changed = any(each.state != THERE for each in found)
    for step in steps.values():
        if not step.name.startswith(("encode ", "fit ")):
            found.append(_last(step, ledger, changed))
    return found


def _last(step: Step, ledger: Ledger, changed: bool) -> Foreseen:
    """A table, figures or the page: seconds at most, and made anew where anything before them is."""
    there = not changed and step.is_done(ledger.step(step.name))
    return Foreseen(step.name, THERE if there else MISSING)


class _Planner:
    """Estimates of one study; stores of samples of its missing sources lie in a folder aside."""

    def __init__(self, study: Study, work: StudyFolder, commands: Commands, folder: Path) -> None:
        self._study, self._work, self._commands, self._folder = study, work, commands, folder
        self._stores: dict[str, SourceStore] = {}
        self._ready: set[str] = set()  # sweeps of which every run is there
        self._measured = Measurements()  # of all sweeps together

    def encode(self, name: str, done: bool) -> Foreseen:
        """The step of a source."""
        place = self._work.store(name)
        if is_complete(place):  # also one that this study has not looked at yet: it will be found complete
            self._stores[name] = store = complete_store(place)
            told = f"{store.bytes / 1e6:,.0f} MB" + ("" if done else "; whether it is this source's will be looked at")
            return Foreseen(f"encode {name}", THERE, 0, 0.0, told)
        self._stores[name] = store = sample_store(self._study.sources[name], self._folder, self._commands.encode)
        state = BEGUN if is_store(place) else MISSING
        told = f"{store.rows:,} rows, told from a sample"
        return Foreseen(f"encode {name}", state, store.bytes, store.seconds, told)

    def fit(self, sweep: SweepStep, fitting: SweepFit) -> Foreseen:
        """The step of a sweep: as ``fit --dry-run`` where its stores are there, else over samples of them."""
        name = f"fit {sweep.name}"
        stored = all(is_complete(self._work.store(each)) for each in sweep.sources)
        if stored and set(sweep.begins) <= self._ready:
            runs = self._work.runs(sweep.name)
            found = self._commands.forecast(fitting.store, fitting.sweep, runs, self._measured)
            if not (left := found.runs - found.there):
                self._ready.add(sweep.name)
                return Foreseen(name, THERE, 0, 0.0, f"{found.runs:,} runs")
            state = BEGUN if found.there else MISSING
            return Foreseen(name, state, None, found.seconds, f"{left:,} of {found.runs:,} runs")
        over, cost = sample_fit(sweep, self._work, self._stores)
        specs = over.sweep.specs
        self._measured.sample(specs, cost)
        alone = sum(self._measured.factor(spec) * cost.seconds(spec) for spec in specs)
        processes = min(self._commands.workers or cores(), len(specs))
        seconds = min(alone, START_SECONDS + alone / processes)
        return Foreseen(name, MISSING, None, seconds, f"{len(specs):,} runs, measured over a sample")
