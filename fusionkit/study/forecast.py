"""What a study would do: each step with what is there, and the bytes and time of what is not."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fusionkit.places import sizes_below
from fusionkit.store.manifest import is_complete, is_store, read_manifest
from fusionkit.study.commands import Commands
from fusionkit.study.encode_step import encode_options
from fusionkit.study.fit_step import SweepFit
from fusionkit.study.folder import Ledger, StudyFolder
from fusionkit.study.preflight import preflight
from fusionkit.study.rehearsal import Counts, counts_of, rehearse, sample_of
from fusionkit.study.run import is_encoded, steps_of
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


def foresee_study(study: Study, work: StudyFolder, hands: Commands) -> list[Foreseen]:
    """Each step, in order; nothing is kept.

    Raises:
        UsageError, DataError, EncoderError: what the run itself would refuse.
    """
    work.check()
    ledger = Ledger(work)
    fittings = {name: SweepFit(sweep, work) for name, sweep in study.sweeps.items()}
    steps = {step.name: step for step in steps_of(study, work, hands, fittings)}
    done = [step.name for step in steps.values() if is_encoded(step, ledger)]
    preflight(study, fittings, done)
    with tempfile.TemporaryDirectory(prefix="fusionkit-run-") as folder:
        planner = _Planner(study, work, hands, Path(folder))
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
    """Estimates of one study; ``samples`` of its missing sources lie in a folder aside."""

    def __init__(self, study: Study, work: StudyFolder, hands: Commands, folder: Path) -> None:
        self._study, self._work, self._hands, self._folder = study, work, hands, folder
        self._counts: dict[str, Counts] = {}
        self._places: dict[str, Path] = {}
        self._ready: set[str] = set()  # sweeps of which every run is there

    def encode(self, name: str, done: bool) -> Foreseen:
        """The step of a source."""
        store = self._work.store(name)
        if is_complete(store):  # also one that this study has not looked at yet: it will be found complete
            manifest = read_manifest(store)
            self._places[name], self._counts[name] = store, counts_of(manifest["splits"])
            size = sum(sizes_below(store).values())
            told = f"{size / 1e6:,.0f} MB" + ("" if done else "; whether it is this source's will be looked at")
            return Foreseen(f"encode {name}", THERE, 0, 0.0, told)
        found = self._hands.estimate(encode_options(self._study.sources[name]))
        self._counts[name] = counts_of(found.splits)
        rows = sum(split["rows"] for split in found.splits.values())
        state = BEGUN if is_store(store) else MISSING
        return Foreseen(f"encode {name}", state, found.bytes, found.seconds, f"{rows:,} rows of {found.rows}")

    def fit(self, sweep: SweepStep, fitting: SweepFit) -> Foreseen:
        """The step of a sweep: as ``fit --dry-run`` where its stores are there, else by a rehearsal."""
        name = f"fit {sweep.name}"
        stored = all(is_complete(self._work.store(each)) for each in sweep.sources)
        if stored and set(sweep.begins) <= self._ready:
            found = self._hands.foresee(fitting.store, fitting.sweep, self._work.runs(sweep.name))
            if not (left := found.runs - found.there):
                self._ready.add(sweep.name)
                return Foreseen(name, THERE, 0, 0.0, f"{found.runs:,} runs")
            state = BEGUN if found.there else MISSING
            return Foreseen(name, state, None, found.seconds, f"{left:,} of {found.runs:,} runs")
        places = {each: self._sample(each) for each in sweep.sources}
        runs, seconds = rehearse(sweep, self._work, places, self._counts, self._hands.workers)
        return Foreseen(name, MISSING, None, seconds, f"{runs:,} runs, measured over a sample")

    def _sample(self, name: str) -> Path:
        if name not in self._places:
            source = self._study.sources[name]
            small = sample_of(source, self._folder / "sources" / name)
            store = self._folder / "stores" / name
            options: Mapping[str, Any] = encode_options(source)
            self._hands.encode({**options, "source": str(small), "config": None, "revision": None}, store)
            self._places[name] = store
        return self._places[name]
