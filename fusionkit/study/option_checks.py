"""Names and ranges that a study may have, asked of the tables and specs that will read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from fusionkit.dataset.share import parse_share
from fusionkit.errors import UsageError, unknown_name
from fusionkit.fit.sweep.grid import seed_pairs
from fusionkit.fit.train.options import check_options
from fusionkit.fusions import fusion_name
from fusionkit.report import FIGURES
from fusionkit.runs.folder import FLAT
from fusionkit.specs import AUTO, ORDERS, PARTS, RunSpec
from fusionkit.study.study import Comparison
from fusionkit.study.yaml_tree import YamlNode
from fusionkit.tasks import TASKS
from fusionkit.tasks.head_check import check_head, check_name
from fusionkit.yaml_texts import Keys

HEADS = tuple(dict.fromkeys(head for task in TASKS.values() for head in task.heads))
COLUMNS = ("sweep", *(field.name for field in dataclasses.fields(RunSpec)), *FLAT)
ANY = RunSpec(store="0" * 16, task="classification", label="label", fusion="last", head="classifier")
# Parameters of `expand` that take several, by the field of a run that each of their values goes to.
FIELDS = {"lrs": "lr", "batch_sizes": "batch_size"}


def check_option(parameter: str, value: Any) -> None:
    """Refuse one value of an option of ``fit`` that no run can have.

    Args:
        parameter: of :func:`fusionkit.fit.sweep.grid.expand`.

    Raises:
        UsageError: an unknown name, or a number out of range.
    """
    if parameter in NAMED:
        NAMED[parameter](value)
        return
    field = FIELDS.get(parameter, parameter)
    if field in RunSpec.__dataclass_fields__ and field not in ("label", "fusion_layers", "init_from"):
        dataclasses.replace(ANY, **{field: value})


def check_together(block: Mapping[str, Any]) -> None:
    """Refuse a head that is none of its task's, and options that its head cannot use."""
    task, head = block.get("task"), block.get("head")
    seed_pairs(*(block.get(name) for name in ("seeds", "data_seeds", "init_seeds")))
    if task is not None and head is not None:
        check_head(TASKS[task], head)
    if head is None and task is None:
        return
    chosen = head or TASKS[str(task)].heads[0]
    taken = {name: block[name] for name in ("label_smoothing", "class_weights", "compute_dtype") if name in block}
    check_options(dataclasses.replace(ANY, head=chosen, **taken))


def check_comparison(written: YamlNode, keys: Keys, comparison: Comparison) -> None:
    """Refuse columns that no table of results has."""
    for number, name in enumerate(comparison.by):
        written.among((*keys, "by", str(number)), "column of the results", name, COLUMNS)
    if comparison.across is not None and comparison.across not in comparison.by:
        raise written.wrong(
            (*keys, "across"),
            f"{comparison.across!r} is laid across, but not grouped by",
            expected="one of the columns behind `by:`",
            received=", ".join(comparison.by) or "none",
        )
    for part in (comparison.baseline or "").split(","):
        name, equals, _ = part.partition("=")
        # `dwatt:scale=yes` is a value of the column fusion.
        if equals and ":" not in name:
            written.among((*keys, "baseline"), "column of the results", name, COLUMNS)


def check_figures(written: YamlNode, names: tuple[str, ...]) -> None:
    """Refuse figures that there are none of."""
    for number, name in enumerate(names):
        written.among(("figures", str(number)), "figure", name, FIGURES)


def _among(kind: str, known: Any) -> Callable[[str], None]:
    def check(name: str) -> None:
        if name not in known:
            raise unknown_name(kind, name, known)

    return check


def _head(name: str) -> None:
    if name not in HEADS:
        check_name(name)


def _watched(text: str) -> None:
    try:
        parse_share(text)
    except UsageError as error:
        raise UsageError(
            "validate-on takes a number of validation examples, or a share of them",
            expected="a number like 800, or a percentage like 10%",
            received=text,
        ) from error


def _seeds(count: int) -> None:
    seed_pairs(count)


NAMED: dict[str, Callable[[Any], object]] = {
    "task": _among("task", TASKS),
    "fusions": fusion_name,
    "head": _head,
    "order": _among("order", (AUTO, *ORDERS)),
    "freeze": _among("part to freeze", PARTS),
    "seeds": _seeds,
    "data_seeds": _seeds,
    "init_seeds": _seeds,
    "validate_on": _watched,
}
