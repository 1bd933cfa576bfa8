"""Running a study: step after step, only what is missing.

A study that was killed continues when it is run again: stores by parts, sweeps by runs, everything else by steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fusionkit.errors import NothingFinishedError, errors_at, unknown_name
from fusionkit.names import ROLES
from fusionkit.report.altair import altair, vl_convert
from fusionkit.sources import Source, guess_columns
from fusionkit.study.ablate_step import ablate_step
from fusionkit.study.encode_step import encode_step, opened_once
from fusionkit.study.fit_step import SweepFit, fit_step
from fusionkit.study.folder import Ledger, StudyFolder
from fusionkit.study.report_steps import figures_step, report_step, table_step
from fusionkit.study.steps import Commands, Step
from fusionkit.study.study import SourceStep, Study, SweepStep

Known = Mapping[str, dict[str, Any]]
Data = Callable[[SourceStep], Source]


@dataclass(frozen=True)
class StepResult:
    """The outcome of a step.

    Attributes:
        made: whether it was done now; False if it was done before. seconds: of this call.
    """

    step: str
    made: bool
    seconds: float


def steps_of(study: Study, work: StudyFolder, commands: Commands, fittings: Mapping[str, SweepFit]) -> list[Step]:
    """All steps, in their order."""
    steps = [encode_step(source, work, commands) for source in study.sources.values()]
    steps += [fit_step(sweep, work, commands, fittings[name]) for name, sweep in study.sweeps.items()]
    steps += [ablate_step(name, work, commands, fittings[name]) for name in study.ablate]
    steps += [table_step(comparison, work, commands, fittings) for comparison in study.comparisons.values()]
    if study.sweeps and study.figures != ():
        steps.append(figures_step(study, work, commands))
    if study.sweeps and study.report is not None:
        steps.append(report_step(study.report, study, work, commands))
    return steps


class PreparedStudy(NamedTuple):
    """A study before its work begins.

    Attributes:
        ledger: of its folder. fittings: its sweeps by name. steps: all, in order. encoded: the names of the encode
            steps that are done.
    """

    ledger: Ledger
    fittings: dict[str, SweepFit]
    steps: list[Step]
    encoded: list[str]


def prepare(study: Study, work: StudyFolder, commands: Commands, known: Known | None, data: Data) -> PreparedStudy:
    """The steps of a study, after :func:`preflight`, whose errors it raises; ``data`` opens sources."""
    ledger = Ledger(work)
    begun = {name for sweep in study.sweeps.values() for name in sweep.begins}
    fittings: dict[str, SweepFit] = {}
    for name, sweep in study.sweeps.items():
        fittings[name] = SweepFit(
            sweep, work, known=known, before=dict(fittings), begun=name in begun, ablated=name in study.ablate
        )
    steps = steps_of(study, work, commands, fittings)
    encoded = [step.name for step in steps[: len(study.sources)] if step.is_done(ledger.step(step.name))]
    preflight(study, fittings, encoded, data)
    return PreparedStudy(ledger, fittings, steps, encoded)


def run_study(
    study: Study, work: StudyFolder, commands: Commands, command: str, known: Known | None = None
) -> Iterator[StepResult]:
    """Do the missing steps, one after another. A step whose runs have all failed is left out, with a message.

    Args:
        command: the command line, for ``study.json``. known: records, by digest, of runs that count as done
            (:func:`fusionkit.runs.records_file.known_runs`), except in sweeps that others start from, and without their
            ablation in sweeps that are ablated.

    Raises:
        UsageError: the folder holds something else, or another process works in it. FusionkitError: a step failed;
            those before it are kept.
    """
    work.check()
    with work.held():
        prepared = prepare(study, work, commands, known, opened_once())
        ledger = prepared.ledger
        ledger.begin(command, study.written.value)
        for step in prepared.steps:
            began = time.monotonic()
            try:
                if not (done := step.is_done(ledger.step(step.name))):
                    source = step.source()  # before the work: what changes meanwhile is not what was read
                    ledger.keep(step, source, step.make(), time.monotonic() - began)
            except NothingFinishedError as error:
                commands.say(f"{step.name} is left out: {error.what}")
            else:
                yield StepResult(step.name, not done, 0.0 if done else time.monotonic() - began)


def preflight(study: Study, fittings: Mapping[str, SweepFit], encoded: Sequence[str], data: Data) -> None:
    """Open the sources that are not encoded yet, and expand the sweeps whose stores are there.

    Args:
        fittings: by the names of sweeps. encoded: the names of the encode steps that are done. data: opens sources.

    Raises:
        UsageError, DataError: what an encode or a fit would refuse.
    """
    if study.figures != () or study.report is not None:
        altair(), vl_convert()  # without them drawing would fail, hours later
    columns = {name: columns_of(each, data) for name, each in study.sources.items() if f"encode {name}" not in encoded}
    for name, sweep in study.sweeps.items():
        missing = [source for source in sweep.sources if source in columns]
        if not missing and not sweep.begins:  # a sweep that starts from others can be expanded only when these are done
            fittings[name].sweep  # noqa: B018
        for source in missing:
            for label in labels_of(sweep, source) - set(columns[source]):
                with errors_at(f"{sweep.place}, sweep {name}"):
                    raise unknown_name(f"column of source {source!r}", label, columns[source])


def labels_of(sweep: SweepStep, source: str) -> set[str]:
    """The columns of a source that a sweep names."""
    named = [f"{source}={task['label']}" for task in sweep.tasks if task["store"] == source and "label" in task]
    for block in sweep.blocks:
        named += [label for label in str(block.get("label") or "").split(",") if label]
    pairs = [label.rpartition("=") for label in named]
    # If each task has its own source, each name is that of a source.
    return {column for name, _, column in pairs if not (sweep.is_multi and name and name != source)}


def columns_of(source: SourceStep, data: Data) -> list[str]:
    """The columns of a source, after a check that its text columns are found as in an encode."""
    with errors_at(f"{source.place}, source {source.name}"):
        opened = data(source)
        guess_columns(opened, **{role: source.options.get(role) for role in ROLES})
    return list(next(iter(opened.splits.values())).column_names)
