"""The page as one HTML file: template, style, scripts and the content of a report. It makes no request.

The content security policy in its head forbids every request, and every script whose SHA-256 it does not name. Texts of
a data set stand in JSON in which no tag can begin or end, and the scripts put them into the page as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib import resources
from string import Template
from typing import Any

from fusionkit.report.altair import vl_convert

SCRIPTS = ("table.js", "charts.js", "inside.js", "page.js")


def fill_page(content: dict[str, Any]) -> str:
    """The page as HTML.

    Args:
        content: plain values, as :func:`fusionkit.report.content.content_of` gives them; ``title`` is one.
    """
    # Vega, Vega-Lite and Vega-Embed as one script, which names them on ``window``.
    scripts = [str(vl_convert().javascript_bundle()), "\n".join(_file(name) for name in SCRIPTS)]
    return Template(_file("page.html")).substitute(
        policy=_policy(scripts),
        title=html.escape(str(content["title"])),
        style=_file("page.css"),
        content=json_for_html(content),
        vega=scripts[0],
        script=scripts[1],
    )


def json_for_html(value: Any) -> str:
    """JSON that cannot end the element it stands in, nor begin a comment there; NaN and infinity become null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    text = json.dumps(finite, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Only strings hold these, where an escape says the same. U+2028 and U+2029 ended lines of older scripts.
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _policy(scripts: list[str]) -> str:
    allowed = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    # Vega writes style attributes into its SVG, so styles may stand in line; none of them can load anything.
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _file(name: str) -> str:
    return resources.files("fusionkit.report").joinpath("page", name).read_text(encoding="utf-8")
