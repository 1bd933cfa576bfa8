"""Writing a report: the page, and its figures as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


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
    costs: Mapping[str, float] | None = None,
    stores: Sequence[Path] = (),
) -> ReportFacts:
    """Write the page of some runs.

    Args:
        runs: folders that ``fusionkit fit`` wrote. out: the HTML file, replaced if it is there.
        figures: a folder for every figure as SVG, PNG and CSV. baseline: the fusion to compare with.
        title: of the page. costs: seconds that encoding took by a store's name, where its own records are gone.
        stores: where the runs' stores are, if not beside the runs.

    Raises:
        UsageError: a folder without finished runs, an unknown baseline, or the extra ``report`` is missing.
    """
    raise NotImplementedError


def draw_figures(runs: Sequence[Path], folder: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Write figures as SVG and PNG, and their data as CSV.

    Args:
        names: keys of :data:`fusionkit.report.FIGURES`; None is every one that these runs have data for.

    Returns:
        the files.

    Raises:
        UsageError: an unknown name, runs without data for a figure that was named, or the extra is missing.
    """
    raise NotImplementedError
