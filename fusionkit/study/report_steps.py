"""The steps of figures and page, over all runs of a study."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusionkit.errors import UsageError
from fusionkit.report import write_report
from fusionkit.report.predictions import AllPredictions
from fusionkit.report.render import draw, write_figures
from fusionkit.report.report_data import read_report_data
from fusionkit.study.commands import Commands
from fusionkit.study.fit_step import all_digests, runs_content
from fusionkit.study.folder import StudyFolder, content_of
from fusionkit.study.steps import Made, Step
from fusionkit.study.study import Report


def figures_step(
    names: tuple[str, ...] | None, work: StudyFolder, sweeps: Sequence[str], stores: Sequence[str], commands: Commands
) -> Step:
    """Draw figures; one that these runs have no data for is left out, and said."""

    def make() -> Made:
        # As `draw_figures` does, but that it is told where the stores are.
        study = read_report_data([work.runs(name) for name in sweeps], [work.store(name) for name in stores])
        looks, drawn = AllPredictions(study), []
        for each in names or [None]:
            try:
                drawn += draw(study, looks, None if each is None else [each])
            except UsageError as error:
                commands.say(f"figure {each} is left out: {error.what}")
        return _contents(work, write_figures(drawn, work.figures))

    told = ["all"] if names is None else list(names)
    command = _command(work, sweeps, stores, work.figures / "report.html", "--figures", str(work.figures))
    return Step("figures", command, lambda: {"figures": told, **_runs(work, sweeps)}, _there(work), make)


def report_step(
    report: Report, work: StudyFolder, sweeps: Sequence[str], stores: Sequence[str], commands: Commands
) -> Step:
    """Write the page."""

    def make() -> Made:
        facts = write_report(
            [work.runs(name) for name in sweeps],
            work.report,
            baseline=report.baseline,
            title=report.title,
            stores=[work.store(name) for name in stores],
        )
        for line in facts.left_out:
            commands.say(f"report: {line}")
        return _contents(work, [work.report])

    options = ["--title", report.title, *(["--baseline", report.baseline] if report.baseline else [])]
    command = _command(work, sweeps, stores, work.report, *options)
    told = {"title": report.title, "baseline": report.baseline}
    return Step("report", command, lambda: {**told, **_runs(work, sweeps)}, _there(work), make)


def _command(work: StudyFolder, sweeps: Sequence[str], stores: Sequence[str], page: Path, *options: str) -> str:
    """What writes a page of all runs, their stores found where a study keeps them."""
    runs = [str(work.runs(name)) for name in sweeps]
    places = [word for name in stores for word in ("--store", str(work.store(name)))]
    return shlex.join(["fusionkit", "report", *runs, "--out", str(page), *places, *options])


def _runs(work: StudyFolder, sweeps: Sequence[str]) -> dict[str, Any]:
    """All runs of their folders, which is what figures and page show."""
    return {"runs": {name: runs_content(work.runs(name), all_digests(work.runs(name))) for name in sweeps}}


def _contents(work: StudyFolder, files: Sequence[Path]) -> Made:
    return {work.name(path): content_of(path) for path in files}


def _there(work: StudyFolder) -> Any:
    def look(known: Mapping[str, str]) -> Made:
        return {name: content_of(work.path / name) for name in known if (work.path / name).is_file()}

    return look
