"""The page about fusions, against the table: every fusion, every option, every count."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from fusionkit.fusions import FUSIONS, build_fusion, fusion_layers, options_of, usage

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "fusions.md").read_text(encoding="utf-8")


def rows(header: str) -> list[list[str]]:
    """The cells of the table whose first column has this header."""
    table = PAGE[PAGE.index(f"| {header} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def parameters(name: str, layers: int, hidden: int) -> int:
    with torch.device("meta"):
        read = fusion_layers(name, tuple(range(layers + 1)), layers + 1)
        return sum(p.numel() for p in build_fusion(name, len(read), hidden).parameters())


def test_the_page_has_every_fusion_with_its_exact_sizes() -> None:
    seen = []
    for name, _, _, _, minilm, large in rows("`--fusion`"):
        seen.append(name.strip("` "))
        spelled = re.sub(":[kn]$", ":1", seen[-1])
        for text, (layers, hidden) in ((minilm, (6, 384)), (large, (24, 1024))):
            assert int(re.sub("[ n,]", "", text)) == parameters(spelled, layers, hidden)
    assert seen == [usage(kind, fusion).partition("[")[0] for kind, fusion in FUSIONS.items()]


def test_the_page_has_every_option() -> None:
    told = {
        (of.strip("` "), option.strip("` ").partition("=")[0])
        for option, ofs, _ in rows("option")
        for of in ofs.split(", ")
    }
    known = {
        (kind, name)
        for kind, fusion in FUSIONS.items()
        for name, option in options_of(fusion).items()
        if not option.required
    }
    assert told == known
    assert len(known) == 5


def test_the_readme_names_every_fusion() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\|", "|")
    assert "|".join(usage(kind, fusion).partition("[")[0] for kind, fusion in FUSIONS.items()) in readme
