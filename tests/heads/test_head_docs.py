"""The page about heads, against the tables: every head, its tasks, its exact sizes."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from fusionkit.heads import HEADS, build_head, decides_by_softmax
from fusionkit.tasks import TASKS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "heads.md").read_text(encoding="utf-8")


def rows(header: str) -> list[list[str]]:
    """The cells of the table whose first column has this header."""
    table = PAGE[PAGE.index(f"| {header} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def test_the_page_has_every_head_with_its_tasks_and_exact_sizes() -> None:
    seen = []
    for name, _, tasks, formula, count, _ in rows("`--head`"):
        seen.append(name.strip("` "))
        assert tasks.split(", ") == [task.name for task in TASKS.values() if seen[-1] in task.heads]
        for width, classes in ((384, 9), (1024, 5)):
            with torch.device("meta"):
                built = sum(p.numel() for p in build_head(seen[-1], width, classes, 0.0).parameters())
            terms = formula.replace(",", "").replace("C²", f"{classes**2}")
            terms = re.sub(r"(?<=[\dd]) (?=[dC])", "*", terms).replace("d", str(width)).replace("C", str(classes))
            assert sum(_product(term) for term in terms.split(" + ")) == built
            assert (width, classes) != (384, 9) or int(count.replace(",", "")) == built
    assert seen == list(HEADS)


def _product(term: str) -> int:
    found = 1
    for factor in term.split("*"):
        found *= int(factor)
    return found


def test_a_task_s_default_comes_first_on_the_page() -> None:
    order = [name.strip("` ") for name, *_ in rows("`--head`")]
    tasks = [task for task in TASKS.values() if set(task.heads) <= set(HEADS)]
    assert len(tasks) == 4
    for task in tasks:
        assert task.heads[0] == min(task.heads, key=order.index)


def test_the_page_has_where_dropout_acts_for_every_head_and_who_decides_by_softmax() -> None:
    told = [name.strip("` ") for names, _ in rows("head") for name in names.split(", ")]
    assert sorted(told) == sorted(HEADS)
    line = next(line for line in PAGE.splitlines() if line.startswith("Label smoothing and class weights"))
    assert re.findall("`([a-z-]+)`", line) == [name for name in HEADS if decides_by_softmax(name)]


def test_the_readme_names_every_head() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\|", "|")
    assert "--head " + "|".join(HEADS) in readme
