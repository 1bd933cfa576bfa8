"""What every head of the table keeps: the contract of ``fusionkit.testing``, against formulas in NumPy."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import fusionkit.heads
from fusionkit.errors import UsageError
from fusionkit.heads import HEADS, build_head, reads_sequences
from fusionkit.tasks import TASKS
from fusionkit.testing import HEAD_CHECKS, HeadCase, check_head

FOLDER = Path(fusionkit.heads.__file__).parent


def made_by_name(path: Path) -> set[str]:
    """The functions of a file that make a head of a width, of classes and a dropout."""
    body = ast.parse(path.read_text("utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Name)]
    heads = [node for node in functions if node.returns.id in ("Softmax", "Crf", "Regressor", "Sigmoid")]  # type: ignore[union-attr]
    wanted = ["width", "classes", "dropout"]
    return {f"{path.stem}:{node.name}" for node in heads if [each.arg for each in node.args.args] == wanted}


def test_the_suites_see_every_file_and_every_head(cases: list[HeadCase]) -> None:
    made = {name for path in FOLDER.glob("*.py") for name in made_by_name(path)}
    assert {entry.path.removeprefix("fusionkit.heads.") for entry in HEADS.values()} == made
    assert [case.name for case in cases] == list(HEADS)
    assert len(made) == len(HEADS) > 5
    assert len(set(HEAD_CHECKS)) == len(HEAD_CHECKS) > 10


@pytest.mark.parametrize("check", HEAD_CHECKS, ids=lambda check: check.__name__)
def test_every_head_keeps_the_contract(check: Callable[[HeadCase], None], case: HeadCase) -> None:
    check(case)


def test_one_call_tries_the_whole_contract(cases: list[HeadCase]) -> None:
    case = next(case for case in cases if case.name == "linear-tagger")
    check_head("linear-tagger", parameters=case.parameters, formula=case.formula, loss=case.loss, decode=case.decode)
    with pytest.raises(AssertionError, match="514 parameters at 256 × 2, declared 512"):
        check_head("linear-tagger", parameters=lambda width, classes: width * classes)


def test_heads_that_read_sequences_are_told_apart_with_how_many(cases: list[HeadCase]) -> None:
    assert {case.name: case.sides for case in cases if case.by_example} == {"bcn": 1, "esim": 2, "esim-regressor": 2}
    assert [name for name in HEADS if reads_sequences(name)] == ["bcn", "esim", "esim-regressor"]


def test_a_task_s_default_is_its_first_of_the_table() -> None:
    defaults = {name: task.heads[0] for name, task in TASKS.items()}
    assert defaults == {
        "classification": "classifier", "pair-classification": "classifier", "tagging": "tagger",
        "regression": "regressor", "multi-label": "sigmoid-classifier", "mlm": "lm-head",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("misspelt", "nearest"), [("cfr", "crf"), ("clasifier", "classifier"), ("linear_tagger", "linear-tagger")]
)
def test_an_unknown_head_is_refused_with_the_nearest(misspelt: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=f"unknown head '{misspelt}'") as caught:
        build_head(misspelt, 5, 3, 0.0)
    assert caught.value.remedy == f"did you mean {nearest!r}?"
    assert caught.value.expected == "one of " + ", ".join(sorted(HEADS))
