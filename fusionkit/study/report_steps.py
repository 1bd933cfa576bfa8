"""The steps of figures and page, over all runs of a study."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from fusionkit.errors import UsageError
from fusionkit.report import write_report
from fusionkit.report.predictions import AllPredictions
from fusionkit.report.render import draw, write_figures
from fusionkit.report.report_data import read_report_data
from fusionkit.study.fit_step import all_digests, runs_content
from fusionkit.study.folder import StudyFolder
from fusionkit.study.steps import Commands, Made, Step
from fusionkit.study.study import Report, Study


def figures_step(study: Study, work: StudyFolder, commands: Commands) -> Step:
    """Draw figures; one that these runs have no data for is left out, and said."""

    def make() -> Made:
        data = read_report_data(*_places(study, work))
        looks, drawn = AllPredictions(data), []
        for name in study.figures or [None]:
            try:
                drawn += draw(data, looks, None if name is None else [name])
            except UsageError as error:
                commands.say(f"figure {name} is left out: {error.what}")
        return work.contents(map(work.name, write_figures(drawn, work.figures)))

    told = ["all"] if study.figures is None else study.figures
    command = _command(study, work, work.figures / "report.html", "--figures", str(work.figures))
    return Step("figures", command, lambda: {"figures": told, "runs": _runs(study, work)}, work.contents, make)


def report_step(report: Report, study: Study, work: StudyFolder, commands: Commands) -> Step:
    """Write the page."""
    told = {"title": report.title, "baseline": report.baseline}

    def make() -> Made:
        runs, stores = _places(study, work)
        facts = write_report(runs, work.report, baseline=report.baseline, title=report.title, stores=stores)
        for line in facts.left_out:
            commands.say(f"report: {line}")
        return work.contents([work.name(work.report)])

    options = ["--title", report.title, *(["--baseline", report.baseline] if report.baseline else [])]
    command = _command(study, work, work.report, *options)
    return Step("report", command, lambda: {**told, "runs": _runs(study, work)}, work.contents, make)


def _places(study: Study, work: StudyFolder) -> tuple[list[Path], list[Path]]:
    """The folders of all runs, and all stores."""
    return [work.runs(name) for name in study.sweeps], [work.store(name) for name in study.sources]


def _command(study: Study, work: StudyFolder, page: Path, *options: str) -> str:
    """What writes a page of all runs, their stores found where a study keeps them."""
    runs, stores = _places(study, work)
    named = [word for store in stores for word in ("--store", str(store))]
    return shlex.join(["fusionkit", "report", *map(str, runs), "--out", str(page), *named, *options])


def _runs(study: Study, work: StudyFolder) -> dict[str, Any]:
    """All runs of their folders, which is what figures and page show."""
    return {name: runs_content(work.runs(name), all_digests(work.runs(name))) for name in study.sweeps}
