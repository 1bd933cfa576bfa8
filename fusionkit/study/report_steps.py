"""The steps over finished runs: a table for each comparison, figures, and the page."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from fusionkit.errors import NothingFinishedError, UsageError
from fusionkit.io.files import write_durably
from fusionkit.options.comparison import Comparison
from fusionkit.options.entry import options_of
from fusionkit.report import write_report
from fusionkit.report.render import draw, write_figures
from fusionkit.report.report_data import read_report_data
from fusionkit.runs.ablations import ABLATION
from fusionkit.runs.example_scores import ExampleScores
from fusionkit.runs.folder import RunsFolder
from fusionkit.runs.record import flat_tests, metrics_of
from fusionkit.runs.summary import NOTES
from fusionkit.runs.tables.comparison_notes import comparison_notes
from fusionkit.runs.tables.paper_tables import table_files
from fusionkit.runs.tabulate import tabulate
from fusionkit.statistics.kept_answers import RunAnswers
from fusionkit.study.fit_step import SweepFit, all_digests, runs_content
from fusionkit.study.folder import StudyFolder, content_of
from fusionkit.study.steps import Commands, Made, Step
from fusionkit.study.study import Report, Study

# What a table can do without, in this order: the first without which it can be made is left out.
LEFT_OUT = {"pareto": ("no marks", "by"), "baseline": ("not compared", "with")}


class Recorded(Protocol):
    """A sweep with recorded runs, in a folder (:class:`SweepFit`) or elsewhere."""

    def records(self) -> list[dict[str, Any]]: ...

    def answers(self, digest: str) -> Mapping[str, RunAnswers]: ...


def table_step(comparison: Comparison, work: StudyFolder, commands: Commands, fittings: Mapping[str, SweepFit]) -> Step:
    """Make the table from the runs that the study asks for, without other runs in their folders."""

    def made_from() -> dict[str, Any]:
        runs = {name: fittings[name].content() for name in comparison.sweeps}
        return {"comparison": dataclasses.asdict(comparison), "runs": runs}

    def make() -> Made:
        summary, notes = summary_of(comparison, frame_of(comparison, fittings), commands.say, answers_of(fittings))
        files = table_files(summary, notes, comparison.across)
        for suffix, text in files.items():
            write_durably(work.table(comparison.name, suffix), text.encode())
        return work.contents(work.name(work.table(comparison.name, suffix)) for suffix in files)

    return Step(f"table {comparison.name}", command_of(comparison, work), made_from, work.contents, make)


def frame_of(comparison: Comparison, fittings: Mapping[str, Recorded]) -> pd.DataFrame:
    """One row per run and store that it was scored on, or task; to the columns of results it adds ``sweep``.

    Raises:
        NothingFinishedError: there are no runs, or no finished one has the comparison's metric.
    """
    records = [(name, record) for name in comparison.sweeps for record in fittings[name].records()]
    if not records:
        raise NothingFinishedError(
            f"the sweeps of comparison {comparison.name} have no runs", remedy="run the study first"
        )
    known = {name for _, record in records for name in metrics_of(record, each_task=True)}
    if known and comparison.metric is not None and comparison.metric not in known:
        raise NothingFinishedError(
            f"no finished run of comparison {comparison.name} has the metric {comparison.metric}; "
            f"they have {', '.join(sorted(known))}"
        )
    rows = [{"sweep": name, **row} for name, record in records for row in flat_tests(record, comparison.metric)]
    frame = pd.DataFrame(rows)
    # A run may be in two sweeps: it counts once, unless sweeps are compared, and by its finished record: halving may
    # have stopped it in one of them.
    frame = frame.sort_values("status", key=lambda status: status != "finished", kind="stable")
    return frame.drop_duplicates(["digest", "evaluated", "task", *({"sweep"} & set(comparison.by))]).sort_index()


def answers_of(fittings: Mapping[str, Recorded]) -> ExampleScores:
    """The answers of the runs of some sweeps; a run may be in several sweeps and have answers in only one."""

    def read(digest: str) -> Mapping[str, RunAnswers]:
        return next((found for each in fittings.values() if (found := each.answers(digest))), {})

    return ExampleScores(read)


def summary_of(
    comparison: Comparison, frame: pd.DataFrame, say: Callable[[str], None], answers: ExampleScores
) -> tuple[pd.DataFrame, list[str]]:
    """The summary, and the notes below it; if runs cannot be compared with the baseline, or none tells the cost of
    ``pareto``, the summary lacks that, and a note says why.
    """
    try:
        summary = tabulate(frame, **comparison.tabulate_options, answers=answers)
    except UsageError as error:
        asked = {name: value for name in LEFT_OUT if (value := getattr(comparison, name)) is not None}
        if not asked:
            raise
        plain = {
            "pareto": dataclasses.replace(comparison, pareto=None),
            "baseline": dataclasses.replace(comparison, baseline=None),
        }
        name = next((each for each in asked if _can_be_made(plain[each], frame, answers)), [*asked][-1])
        if not _can_be_made(dataclasses.replace(comparison, pareto=None, baseline=None), frame, answers):
            raise  # the fault lies elsewhere
        lacks, by = LEFT_OUT[name]
        say(f"table {comparison.name}: {lacks} {by} {asked[name]}: {error.what}")
        summary, notes = summary_of(plain[name], frame, say, answers)
        return summary, [*notes, f"{lacks}: {error.what}"]
    return summary, [*summary.attrs[NOTES], *(comparison_notes(summary) if comparison.baseline is not None else [])]


def _can_be_made(comparison: Comparison, frame: pd.DataFrame, answers: ExampleScores) -> bool:
    try:
        tabulate(frame, **comparison.tabulate_options, answers=answers)
    except UsageError:
        return False
    return True


def command_of(comparison: Comparison, work: StudyFolder) -> str:
    """The command that shows the same for the runs of one sweep."""
    folder = work.runs(comparison.sweeps[0]) if len(comparison.sweeps) == 1 else work.path / "runs" / "SWEEP"
    options, known = list[str](), options_of(Comparison)
    for name, value in {**comparison.tabulate_options, "metric": comparison.metric}.items():
        if value == known[name].default:
            continue
        flag = f"--{known[name].flag}"
        given = value if isinstance(value, tuple) else (value,)
        # A folder of runs is one sweep, so `fusionkit results` has no column of that name.
        words = [word for each in given if each != "sweep" for word in (flag, each)]
        options += [flag] if value is True else words
    return shlex.join(["fusionkit", "results", str(folder), *options])


def figures_step(study: Study, work: StudyFolder, commands: Commands) -> Step:
    """Draw the figures; one that lacks data is left out, with a message."""

    def make() -> Made:
        try:
            data = read_report_data(*_finished_places(study, work))
        except NothingFinishedError as error:
            commands.say(f"all figures are left out: {error.what}")
            return {}
        drawn = []
        for name in study.figures or [None]:
            try:
                drawn += draw(data, None if name is None else [name])
            except UsageError as error:
                what = "all figures are" if name is None else f"figure {name} is"
                commands.say(f"{what} left out: {error.what}")
        return work.contents(map(work.name, write_figures(drawn, work.figures)))

    told = ["all"] if study.figures is None else study.figures
    command = _command(study, work, work.figures / "report.html", "--figures", str(work.figures))
    return Step("figures", command, lambda: {"figures": told, **_shown(study, work)}, work.contents, make)


def report_step(report: Report, study: Study, work: StudyFolder, commands: Commands) -> Step:
    """Write the page. Where no run has finished it is left out, with a message."""
    told = {"title": report.title, "about": report.about, "baseline": report.baseline}

    def make() -> Made:
        try:
            runs, stores = _finished_places(study, work)
            facts = write_report(
                runs, work.report, baseline=report.baseline, title=report.title, about=report.about, stores=stores
            )
        except NothingFinishedError as error:
            commands.say(f"the report is left out: {error.what}")
            return {}
        for line in facts.left_out:
            commands.say(f"report: {line}")
        return work.contents([work.name(work.report)])

    options = [word for name, text in told.items() if text for word in (f"--{name}", text)]
    command = _command(study, work, work.report, *options)
    return Step("report", command, lambda: {**told, **_shown(study, work)}, work.contents, make)


def _places(study: Study, work: StudyFolder) -> tuple[list[Path], list[Path]]:
    """The folders of all runs, and all stores."""
    return [work.runs(name) for name in study.sweeps], [work.store(name) for name in study.sources]


def _finished_places(study: Study, work: StudyFolder) -> tuple[list[Path], list[Path]]:
    """:func:`_places` without the sweeps that have no record, such as one that was left out.

    Raises:
        NothingFinishedError: no sweep has one.
    """
    runs, stores = _places(study, work)
    if not (found := [folder for folder in runs if RunsFolder(folder).record_files()]):
        raise NothingFinishedError("no run has finished")
    return found, stores


def _command(study: Study, work: StudyFolder, page: Path, *options: str) -> str:
    """The command that writes a page of all runs, with the stores of the study."""
    runs, stores = _places(study, work)
    named = [word for store in stores for word in ("--store", str(store))]
    return shlex.join(["fusionkit", "report", *map(str, runs), "--out", str(page), *named, *options])


def _shown(study: Study, work: StudyFolder) -> dict[str, Any]:
    """The inputs of figures and page: the runs of all folders, and the ablations that `fusionkit ablate` kept."""
    folders = {name: work.runs(name) for name in study.sweeps}
    runs = {name: runs_content(folder, all_digests(folder)) for name, folder in folders.items()}
    kept = {file.parent.name: content_of(file) for each in folders.values() for file in each.glob(f"*/{ABLATION}")}
    return {"runs": runs} | ({"ablations": kept} if kept else {})
