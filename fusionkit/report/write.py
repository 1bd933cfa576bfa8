"""Writing a report: the page, and its figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fusionkit.errors import UsageError
from fusionkit.files import write_durably
from fusionkit.report.altair import altair, vl_convert
from fusionkit.report.content import content_of
from fusionkit.report.html import fill_page
from fusionkit.report.predictions import AllPredictions
from fusionkit.report.render import draw, write_figures
from fusionkit.report.report_data import read_report_data


@dataclass(frozen=True)
class ReportFacts:
    """What was written.

    Attributes:
        page: the file. bytes: its size. runs: how many it shows. figures: files that were drawn beside it.
        left_out: what could not be shown, a sentence each.
    """

    page: Path
    bytes: int
    runs: int
    figures: list[Path]
    left_out: list[str]


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    figures: Path | None = None,
    baseline: str | None = None,
    title: str | None = None,
    stores: Sequence[Path] = (),
) -> ReportFacts:
    """Write the page of some runs.

    Args:
        runs: folders that ``fusionkit fit`` wrote. out: the HTML file, replaced if it is there.
        figures: a folder for every figure as SVG, PNG and CSV. baseline: the method to compare with; None is ``last``,
            where there are such runs.
        title: of the page. stores: where the runs' stores are, if not beside the runs.

    Raises:
        UsageError: a folder without finished runs, an unknown baseline, or the extra ``report`` is missing.
    """
    altair(), vl_convert()  # before any work
    if out.is_dir():
        raise UsageError(f"{out} is a folder", expected="a file to write, report.html", remedy="name a file in it")
    study = read_report_data(runs, stores)
    looks = AllPredictions(study)
    drawn = draw(study, looks)
    content = content_of(study, looks, drawn, baseline, title, out)
    page = fill_page(content).encode()
    write_durably(out, page)
    files = [] if figures is None else write_figures(drawn, figures)
    return ReportFacts(out, len(page), len(study.records), files, looks.left_out)


def draw_figures(runs: Sequence[Path], folder: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Write figures as SVG and PNG, their data as CSV and their Vega-Lite specifications.

    Args:
        names: keys of :data:`fusionkit.report.FIGURES`; None is every one that these runs have data for.

    Returns:
        the files.

    Raises:
        UsageError: an unknown name, runs without data for a figure that was named, or the extra is missing.
    """
    altair(), vl_convert()
    study = read_report_data(runs)
    return write_figures(draw(study, AllPredictions(study), names), folder)
