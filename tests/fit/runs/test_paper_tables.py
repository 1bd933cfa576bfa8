"""Tables for papers: one layout whatever failed, and every number with its metric, its unit and its sign."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from fusionkit.runs.tables.paper_tables import latex, markdown


def group(label: str, fusion: str, metric: str | None, mean: float = math.nan, failed: int = 0) -> dict[str, Any]:
    return {
        "label": label, "fusion": fusion, "metric": metric, "scored_on": metric and "test", "runs": 1, "failed": failed,
        "mean": mean, "std": math.nan, "low": mean - 0.5, "high": mean + 0.5, "parameters": 100.0, "seconds_alone": 1.0,
    }  # fmt: skip


def test_a_group_whose_runs_all_failed_leaves_the_layout_as_it_is() -> None:
    lost = pd.DataFrame([
        group("intent", "last", "accuracy", 0.9), group("intent", "linear", "accuracy", 0.7),
        group("slots", "last", "f1", 0.8), group("slots", "linear", None, failed=2),
    ])  # fmt: skip
    assert markdown(lost, across="label").splitlines() == [
        "| fusion | scored on | intent accuracy | slots F1 |", "| --- | --- | --- | --- |",
        "| last | test | 90.0 | 80.0 |", "| linear | test | 70.0 | – |",
    ]  # fmt: skip
    assert markdown(lost, across="fusion").splitlines() == [
        "| label | scored on | metric | last | linear |", "| --- | --- | --- | --- | --- |",
        "| intent | test | accuracy | 90.0 | 70.0 |", "| slots | test | f1 | 80.0 | – |",
    ]  # fmt: skip
    assert markdown(lost, across="metric").splitlines()[0] == "| label | fusion | scored on | accuracy | F1 |"


def test_latex_names_each_metric_and_counts_failed_runs_and_sets_minus_signs() -> None:
    several = [group("noun", "last", "matthews", -0.25, failed=2), group("text", "last", "perplexity", 12.5)]
    lines = latex(pd.DataFrame(several)).splitlines()
    assert lines[2] == r"label & fusion & scored on & metric & score & 95\,\% interval & runs & parameters \\"
    assert lines[4:6] == [
        r"noun & last & test & matthews, \% & $-$25.0 & $-$75.0 \dots 25.0 & 1 + 2 failed & 100 \\",
        r"text & last & test & perplexity & 12.5 & 12.0 \dots 13.0 & 1 & 100 \\",
    ]
    assert "metric" not in latex(pd.DataFrame(several[:1]))
