"""Names and ranges that a study may have, asked of the tables and specs that will read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fusionkit.fit.sweep.grid import seed_pairs
from fusionkit.fit.train.schedule import check_options
from fusionkit.heads import each_head
from fusionkit.options.entry import PRODUCT, options_of
from fusionkit.options.tables import FIT
from fusionkit.options.yaml_file import YamlNode
from fusionkit.options.yaml_texts import Keys
from fusionkit.runs.folder import FLAT
from fusionkit.specs import RunSpec
from fusionkit.study.study import Comparison
from fusionkit.study.yaml_tree import all_among
from fusionkit.tasks import tasks_of
from fusionkit.tasks.joint import fitting_heads

COLUMNS = ("sweep", *(field.name for field in dataclasses.fields(RunSpec)), *FLAT)
ANY = RunSpec(store="0" * 16, task="classification", label="label", fusion="last", head="classifier")


def check_together(block: Mapping[str, Any]) -> None:
    """Refuse a head that is none of its task's, and options that its head cannot use."""
    task, head = block.get("task"), block.get("head")
    seed_pairs(*(block.get(name) for name in ("seeds", "data_seeds", "init_seeds")))
    if task is not None:
        chosen = fitting_heads(tasks_of(task), head)
    elif head is not None:
        chosen = "+".join(each_head(head))
    else:
        return
    known = options_of(RunSpec)
    plain = [entry.name for entry in FIT.values() if entry is known.get(entry.name) and entry.lists == PRODUCT]
    taken = {name: block[name] for name in plain if name in block}
    check_options(dataclasses.replace(ANY, head=chosen, **taken))


def check_comparison(written: YamlNode, keys: Keys, comparison: Comparison) -> None:
    """Refuse columns that no table of results has."""
    all_among(written, (*keys, "by"), "column of the results", comparison.by, COLUMNS)
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
