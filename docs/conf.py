"""The site: README, docs/*.md and the reference, built where they lie, so that links hold here and on a code host.

    make docs    # build/site/index.html

What is read is the repository itself (``include_patterns``); nothing is fetched, at building or at reading.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import fusionkit
import fusionkit.fit
from fusionkit.fusions import FUSIONS

for module in (fusionkit, fusionkit.fit):  # autodoc sees what is there, and these load their members when asked
    vars(module).update({name: getattr(module, name) for name in module.__all__})

project, author = "fusionkit", "The fusionkit authors"
release = importlib.metadata.version("fusionkit")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "data/*/README.md", "pipelines/*/README.md", "benchmarks/*.md"]

html_theme = "furo"
html_title = f"fusionkit {release}"
html_copy_source = False
myst_heading_anchors = 3  # links to headings, as code hosts make them

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# Beside the README's own text, which a code host shows without them.
CONTENTS = """
```{{toctree}}
:hidden:
:caption: {caption}

{pages}
```
"""
REPOSITORY = Path(__file__).parent.parent
STUDIES = sorted(str(page.relative_to(REPOSITORY).with_suffix("")) for page in REPOSITORY.glob("pipelines/*/README.md"))
PAGES = {
    "Guides": (
        "docs/python",
        "docs/training",
        "docs/fusions",
        "docs/heads",
        "docs/methods",
        "docs/multi-task",
        "docs/your-own",
        "docs/cluster",
        "docs/statistics",
        "docs/report",
        "docs/logging",
        "docs/shell",
    ),
    "Studies": ("docs/studies", *STUDIES),
    "Reference": ("docs/terms", "docs/cli", "docs/api", "docs/store-format"),
    "Behind it": (
        "docs/results",
        "benchmarks/RESULTS",
        "docs/scaling",
        "docs/design",
        "docs/engine",
        "data/travel-desk/README",
        "CONTRIBUTING",
        "CHANGELOG",
    ),
}
REDIRECT = '<!doctype html><title>fusionkit</title><meta http-equiv="refresh" content="0; url=README.html">'


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """The tree of pages, and a section for each fusion in the reference."""
    if name == root_doc:
        source[0] += "".join(CONTENTS.format(caption=part, pages="\n".join(PAGES[part])) for part in PAGES)
    if name == "docs/api":
        modules = [path.partition(":")[0] for path in FUSIONS.values()]
        source[0] = source[0].replace(
            "FUSIONS", "\n".join(f".. automodule:: {name}\n   :members:\n" for name in modules)
        )


def as_text(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings as this project writes them, made what napoleon reads.

    Several arguments may stand in one line, each behind the other's full stop: a line each. Single backticks are code,
    as in Markdown. A name that ends in ``_`` is no link.
    """
    known = {*getattr(obj, "__annotations__", {}), *getattr(getattr(obj, "__init__", None), "__annotations__", {})}
    found, indent = [], None
    for line in lines:
        inside = len(line) - len(line.lstrip())
        if re.fullmatch(r"\s*(Args|Attributes|Raises):", line):
            indent = inside + 4
        elif line.strip() and indent is not None and inside < indent:
            indent = None
        line = re.sub(r"(?<![`:\w])`([^`]+)`(?![`_])", r"``\1``", line)
        for part in [line] if indent is None else _items(line, known):
            name, colon, told = part.partition(": ") if indent is not None else ("", "", part)
            found.append(name + colon + re.sub(r"(\w)_(?=[\s,:;.)]|$)", r"\1\_", told))
    lines[:] = found


def _items(line: str, known: set[str]) -> list[str]:
    """``a: told. b: told.`` as a line each, where ``b`` is a name and no word of the text."""
    starts = [0]
    for each in re.finditer(r"(?<=[.;] )((?:\w+, )*\w+): (?=\S)", line):
        names = each[1].split(", ")
        if {*names} <= known or all(name.endswith(("_", "Error")) for name in names):
            starts.append(each.start())
    space = line[: len(line) - len(line.lstrip())]
    parts = [line[start:end].rstrip() for start, end in itertools.pairwise([*starts, len(line)])]
    return [parts[0], *(space + part for part in parts[1:])]


def start_page(app: Sphinx, error: Exception | None) -> None:
    """A folder of pages is opened at index.html."""
    if error is None:
        Path(app.outdir, "index.html").write_text(REDIRECT, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """What is done beside Sphinx's own work."""
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", as_text, priority=400)  # before napoleon's
    app.connect("build-finished", start_page)
