"""Writing a report: the page as one HTML file that makes no request, and its figures as files.

The content security policy in the page's head forbids every request, and every script whose SHA-256 it does not name.
Texts of a data set are in JSON without ``<``, ``>`` and ``&``, and the scripts put them into the page as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fusionkit.errors import UsageError
from fusionkit.io.files import write_durably
from fusionkit.io.places import Place
from fusionkit.plural import counted
from fusionkit.printable import printable
from fusionkit.report.altair import altair, vl_convert
from fusionkit.report.content import content_of
from fusionkit.report.predictions import all_predictions
from fusionkit.report.render import draw, write_figures
from fusionkit.report.report_data import read_report_data

SCRIPTS = ("table.js", "charts.js", "inside.js", "page.js")
# U+2028 and U+2029 ended lines in older JavaScript. A lone surrogate, as of a path that is not UTF-8, has no encoding.
UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class ReportFacts:
    """The facts about a written report.

    Attributes:
        page: the file. bytes: its size in bytes. runs: the number of runs shown. figures: files that were drawn beside
            it.
        left_out: a sentence for each thing that could not be shown.
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
    about: str | None = None,
    stores: Sequence[Place] = (),
) -> ReportFacts:
    """Write the page of some runs.

    Args:
        runs: folders that ``fusionkit fit`` wrote. out: the HTML file, replaced if it is there.
        figures: a folder for every figure as SVG, PNG and CSV. baseline: the method to compare with; None is ``last``,
            where there are such runs.
        title: of the page. about: a paragraph below the title. stores: stores or folders of stores, if not beside the
            runs.

    Raises:
        UsageError: a folder without finished runs, an unknown baseline, or the extra ``report`` is missing.
    """
    altair(), vl_convert()  # before any work
    if out.is_dir():
        raise UsageError(f"{out} is a folder", expected="a file to write, report.html", remedy="name a file in it")
    study = read_report_data(runs, stores)
    drawn = draw(study)
    content = content_of(study, drawn, baseline, title, about, out)
    page = fill_page(content).encode()
    write_durably(out, page)
    files = [] if figures is None else write_figures(drawn, figures)
    left_out = [*all_predictions(study).left_out]
    if study.probing:
        left_out.append(f"{counted(study.probing, 'run')} of --control and --mdl: `fusionkit results` sums them up")
    return ReportFacts(out, len(page), len(study.records), files, left_out)


def draw_figures(runs: Sequence[Path], folder: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Write figures as SVG and PNG, their data as CSV and their Vega-Lite specifications.

    Args:
        names: keys of :data:`fusionkit.report.FIGURES`; None is every one that these runs have data for.

    Raises:
        UsageError: an unknown name, runs without data for a figure that was named, or the extra is missing.
    """
    altair(), vl_convert()
    study = read_report_data(runs)
    return write_figures(draw(study, names), folder)


def fill_page(content: dict[str, Any]) -> str:
    """The page as HTML, from what :func:`fusionkit.report.content.content_of` returns."""
    # Vega, Vega-Lite and Vega-Embed as one script, which names them on ``window``.
    scripts = [str(vl_convert().javascript_bundle()), "\n".join(_file(name) for name in SCRIPTS)]
    return Template(_file("page.html")).substitute(
        # Vega writes style attributes into its SVG, so inline styles are allowed; none of them can load anything.
        policy=f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        title=html.escape(printable(str(content["title"]))),
        style=_file("page.css"),
        content=json_for_html(content),
        vega=scripts[0],
        script=scripts[1],
    )


def json_for_html(value: Any) -> str:
    """JSON that cannot end the element it stands in, nor begin a comment there; NaN and infinity become null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    text = json.dumps(finite, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # These occur only in strings, where an escape means the same.
    return UNSAFE.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return resources.files("fusionkit.report").joinpath("page", name).read_text(encoding="utf-8")
