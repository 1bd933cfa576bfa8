"""Running a study: step after step, only what is missing.

Killed at any moment and run again it goes on: stores by their parts, sweeps by their runs, all else by whole steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fusionkit.study.commands import Commands
from fusionkit.study.encode_step import encode_step
from fusionkit.study.fit_step import SweepFit, fit_step
from fusionkit.study.folder import Ledger, StudyFolder
from fusionkit.study.preflight import preflight
from fusionkit.study.report_steps import figures_step, report_step
from fusionkit.study.steps import Step
from fusionkit.study.study import Study
from fusionkit.study.table_step import table_step


@dataclass(frozen=True)
class StepResult:
    """What became of a step.

    Attributes:
        made: whether it was done now; False for one that was there. seconds: of this call.
    """

    step: str
    made: bool
    seconds: float


def steps_of(study: Study, work: StudyFolder, commands: Commands, fittings: Mapping[str, SweepFit]) -> list[Step]:
    """All steps, in their order."""
    steps = [encode_step(source, work, commands) for source in study.sources.values()]
    steps += [fit_step(sweep, work, commands, fittings[name]) for name, sweep in study.sweeps.items()]
    steps += [table_step(comparison, work, commands, fittings) for comparison in study.comparisons.values()]
    if study.sweeps and study.figures != ():
        steps.append(figures_step(study, work, commands))
    if study.sweeps and study.report is not None:
        steps.append(report_step(study.report, study, work, commands))
    return steps


def prepare(
    study: Study, work: StudyFolder, commands: Commands
) -> tuple[Ledger, dict[str, SweepFit], list[Step], list[str]]:  # fmt: skip
    """What is known of the steps, the sweeps, all steps, and the names of those of sources that are done.

    Raises:
        UsageError, DataError: what an encode or a fit would refuse.
    """
    ledger = Ledger(work)
    fittings = {name: SweepFit(sweep, work) for name, sweep in study.sweeps.items()}
    steps = steps_of(study, work, commands, fittings)
    encodes = steps[: len(study.sources)]
    done = [step.name for step in encodes if step.is_done(ledger.step(step.name))]
    preflight(study, fittings, done)
    return ledger, fittings, steps, done


def run_study(study: Study, work: StudyFolder, commands: Commands, command: str) -> Iterator[StepResult]:
    """Do what is missing, a step at a time.

    Args:
        command: what started it, for ``study.json``.

    Raises:
        UsageError: the folder holds something else, or another process works in it. FusionkitError: a step failed;
            those before it are kept.
    """
    work.check()
    with work.held():
        ledger, _, steps, _ = prepare(study, work, commands)
        ledger.begin(command, study.value)
        for step in steps:
            began = time.monotonic()
            if step.is_done(ledger.step(step.name)):
                yield StepResult(step.name, False, 0.0)
                continue
            made = step.make()
            seconds = time.monotonic() - began
            ledger.keep(step.name, step.command, step.source(), made, seconds, **step.more())
            yield StepResult(step.name, True, seconds)
