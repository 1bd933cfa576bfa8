"""The step of a sweep: train its runs over the stores that it names."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from fusionkit.dataset.share import Share
from fusionkit.dataset.stores import Stores
from fusionkit.errors import NothingFinishedError, errors_at
from fusionkit.fit.sweep.blocks import Sweep, expand_blocks
from fusionkit.fit.sweep.multi import opened
from fusionkit.io.files import write_durably
from fusionkit.io.places import Place
from fusionkit.plural import counted
from fusionkit.printable import as_word
from fusionkit.runs.ablations import ABLATION
from fusionkit.runs.find_run import find_folders
from fusionkit.runs.folder import ANSWERS, RECORD, RunsFolder
from fusionkit.runs.record import all_failed, digest_of_record, is_floor
from fusionkit.runs.records_file import KEPT_ABLATION, TAKEN_FROM, write_taken
from fusionkit.specs import RunSpec, canonical_json, digest_of
from fusionkit.statistics.kept_answers import RunAnswers
from fusionkit.store import Store, open_store
from fusionkit.study.folder import StudyFolder, content_of
from fusionkit.study.steps import Commands, Made, Step
from fusionkit.study.study import SweepStep
from fusionkit.study.sweeps import sweep_text


class SweepFit:
    """A sweep over complete stores: those of the study, or those that ``store_of`` names by source.

    ``known`` has records, by digest, of runs that count as done (:func:`fusionkit.runs.records_file.known_runs`).
    ``before`` has the sweeps above it, by name: it takes only runs of theirs that the study asks for. ``begun``: other
    sweeps start from its runs. ``ablated``: its runs are scored without some of their parts. Both need weights, which a
    record of a file does not have.
    """

    def __init__(
        self,
        step: SweepStep,
        work: StudyFolder,
        store_of: Mapping[str, Place] | None = None,
        known: Mapping[str, dict[str, Any]] | None = None,
        before: Mapping[str, SweepFit] | None = None,
        begun: bool = False,
        ablated: bool = False,
    ) -> None:
        self.step, self._work, self._known, self._before = step, work, known or {}, before or {}
        self._begun, self._ablated = begun, ablated
        self._places = store_of or {name: work.store(name) for name in step.sources}
        self.folder = RunsFolder(work.runs(step.name))

    @cached_property
    def stores(self) -> dict[str, Store]:
        """All stores that it reads, by the names of their sources."""
        return {name: open_store(self._places[name]) for name in self.step.sources}

    @property
    def store(self) -> Stores:
        """The stores that it trains over, opened together."""
        return self._opened[0]

    @cached_property
    def _opened(self) -> tuple[Stores, list[dict[str, Any]]]:
        parts = [Share(self.stores[name], share) for name, share in self.step.parts]
        judges = [self.stores[name] for name in self.step.judges]
        return opened(parts, judges, self.step.blocks, [(task, self.stores[task["store"]]) for task in self.step.tasks])

    @cached_property
    def sweep(self) -> Sweep:
        """Its runs; UsageError if its stores do not fit one of its options."""
        with errors_at(f"{self.step.place}, sweep {self.step.name}"):
            return expand_blocks(self.store, [self._placed(block) for block in self._opened[1]])

    def _placed(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """The block with folders of runs in place of names of sweeps."""
        placed = dict(block)
        if "init_from" in placed:
            placed["init_from"] = tuple(place for name in placed["init_from"] for place in self._asked(name))
        if "draw_from" in placed:
            placed["draw_from"] = tuple(self._asked(placed["draw_from"]))
        return placed

    def _asked(self, name: str) -> list[str]:
        """The places of the runs of a sweep that others start from, or draw from.

        Its folder may also hold runs that the study no longer asks for: nothing is taken from these.

        Raises:
            NothingFinishedError: none of its runs has finished.
        """
        folder, above = self._work.runs(name), self._before.get(name)
        if above is None:
            return [str(folder)]
        asked = {spec.digest for spec in above.sweep.specs}
        with suppress(NothingFinishedError):
            if found := [str(place) for place in find_folders(folder) if place.name in asked]:
                return found
        raise NothingFinishedError(
            f"no run of sweep {name} has finished, so nothing can be taken from one",
            expected="a finished run that the study asks for",
            received=f"none in {folder}",
            remedy=f"`fusionkit status {as_word(folder)}` says what failed and why",
        )

    def records(self) -> list[dict[str, Any]]:
        """The records of its runs that exist, in the order of the sweep."""
        found = (self.folder.record(spec) for spec in self._specs())
        return [record for record in found if record is not None]

    def _specs(self) -> list[RunSpec]:
        """Its runs; none if it starts from a sweep of which no run has finished."""
        try:
            return self.sweep.specs
        except NothingFinishedError:
            return []

    def answers(self, digest: str) -> dict[str, RunAnswers]:
        """The answers on test of one of its runs."""
        return self.folder.answers(digest)

    @property
    def untrained(self) -> Sweep:
        """The sweep without known runs that are not in the folder: the others are there, or have to be trained."""
        return dataclasses.replace(self.sweep, specs=[spec for spec in self.sweep.specs if not self._is_taken(spec)])

    def take_known(self) -> int:
        """Write the records of known runs into the folder, without weights; returns their number."""
        taken = [spec for spec in self.sweep.specs if self._is_taken(spec)]
        for spec in taken:
            write_taken(self.folder, self._known[spec.digest])
        return len(taken)

    def _is_taken(self, spec: RunSpec) -> bool:
        known = self._known.get(spec.digest)
        if known is None or self.folder.has(spec.digest):
            return False
        has_all = not self._begun and (not self._ablated or bool(known.get(KEPT_ABLATION)))
        return has_all and (self.sweep.halving or known["status"] == "finished")

    def lacking_weights(self) -> list[RunSpec]:
        """Its runs whose records an earlier call took from a file, and whose weights are needed now."""
        if not (self._begun or self._ablated):
            return []
        return [RunSpec.from_dict(record["spec"]) for record in self.records() if self._lacks_weights(record)]

    def _lacks_weights(self, record: dict[str, Any]) -> bool:
        if TAKEN_FROM not in record or record["status"] != "finished" or is_floor(record):
            return False
        return self._begun or not (self.folder.path / digest_of_record(record) / ABLATION).is_file()

    def content(self) -> str:
        """SHA-256 over the records of its runs, and the answers that they kept."""
        return runs_content(self.folder.path, [spec.digest for spec in self._specs()])


def fit_step(step: SweepStep, work: StudyFolder, commands: Commands, fitting: SweepFit) -> Step:
    runs, file = work.runs(step.name), work.sweep(step.name)

    def made_from() -> dict[str, Any]:
        specs = fitting.sweep.specs
        stores = {name: store.digest for name, store in fitting.stores.items()}
        return {"stores": stores, "runs": len(specs), "specs": digest_of([spec.digest for spec in specs])}

    def there() -> Made:
        specs = fitting.sweep.specs
        if not all(fitting.folder.has(spec.digest) for spec in specs):
            return {}
        if not fitting.sweep.halving and any(record["status"] == "stopped" for record in fitting.records()):
            return {}
        if commands.log_to:  # runs that are there are logged, which only the command does
            return {}
        if commands.retry_failed and any(record["status"] == "failed" for record in fitting.records()):
            return {}
        if fitting.lacking_weights():
            return {}
        return {work.name(runs): fitting.content(), **work.contents([work.name(file)])}

    def make() -> Made:
        for spec in fitting.lacking_weights():
            fitting.folder.forget(spec)
        if taken := fitting.take_known():
            commands.say(f"{counted(taken, 'run')} of {len(fitting.sweep.specs):,} known: records without weights")
        commands.fit(fitting.store, fitting.sweep, runs)
        head = f"# What `fusionkit run` trained, as a file of its own: fusionkit fit --sweep {file} --out {runs}\n"
        write_durably(file, (head + yaml.safe_dump(sweep_text(step), sort_keys=False, allow_unicode=True)).encode())
        if strangers := set(all_digests(runs)) - {spec.digest for spec in fitting.sweep.specs}:
            commands.say(
                f"{runs} holds {counted(len(strangers), 'run')} that the study no longer asks for: only figures "
                "and the report show them"
            )
        return {work.name(runs): fitting.content(), **work.contents([work.name(file)])}

    def more() -> dict[str, Any]:
        records = fitting.records()
        failed = sum(record["status"] == "failed" for record in records)
        seconds = round(sum(record.get("seconds") or 0.0 for record in records), 3)
        return {"run_seconds": seconds, "failed": failed, "all_failed": all_failed(records)}

    command = shlex.join(["fusionkit", "fit", "--sweep", str(file), "--out", str(runs)])
    return Step(f"fit {step.name}", command, made_from, lambda _: there(), make, more)


def runs_content(runs: Path, digests: Sequence[str]) -> str:
    """SHA-256 over the records of some runs and the answers that they kept, by their digests."""
    files = (f"{digest}/{name}" for digest in digests for name in (RECORD, ANSWERS))
    told = {name: content_of(runs / name) for name in files if (runs / name).is_file()}
    return hashlib.sha256(canonical_json(told).encode()).hexdigest()


def all_digests(runs: Path) -> list[str]:
    """The runs of a folder that have ended."""
    return sorted(path.parent.name for path in RunsFolder(runs).record_files())
