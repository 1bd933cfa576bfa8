"""Reports of thousands of runs: figures draw at most so many rows and say so, and the page opens."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fusionkit.report import render
from fusionkit.report.report_data import ReportData
from fusionkit.specs import RunSpec

MOST = 24


def test_a_figure_draws_no_more_rows_than_a_page_bears_and_says_so(
    study: ReportData, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["break-even", "score-by-epoch", "layer-weights-by-seed"]
    whole = {one.name: one for one in render.draw(study, names)}
    monkeypatch.setattr(render, "MOST_ROWS", MOST)
    seen = 0
    for one in render.draw(study, names):
        [rows] = one.spec["datasets"].values()
        assert len(rows) <= MOST
        assert one.data.equals(whole[one.name].data)  # the CSV has all
        assert (f"Of {len(one.data):,} rows" in one.caption) == (len(one.data) > MOST)
        if one.name in ("break-even", "score-by-epoch") and len(one.data) > MOST:
            column = "heads" if one.name == "break-even" else "epoch"
            shown = {row[column] for row in rows}
            assert {one.data[column].min(), one.data[column].max()} <= shown  # evenly spaced, to the last
            seen += 1
    assert seen == 2


@pytest.mark.soak("products")
def test_a_page_of_five_thousand_runs_opens(
    made: Any, tmp_path: Path, command: Callable[..., str], open_page: Callable[..., Any]
) -> None:
    """Of one task, method and setting: every run has dots of its own."""
    runs = tmp_path / "runs"
    [record] = [
        found
        for path in made.runs.glob("*/run.json")
        if (found := json.loads(path.read_text()))["spec"]["fusion"] == "attention"
        and found["spec"]["label"] == "slots"
        and found["spec"]["shots"] is None
        and found["spec"]["data_seed"] == 0
    ]
    for seed in range(5000):
        spec = replace(RunSpec.from_dict(record["spec"]), data_seed=seed)
        folder = runs / spec.digest
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({**record, "spec": spec.to_dict(), "score": seed / 5000}))
    told = json.loads(command("report", runs, "--out", tmp_path / "page.html", "--store", made.store, "--json"))
    assert told["runs"] == 5000
    assert told["bytes"] < 20e6
    page = open_page(place=tmp_path / "page.html")
    assert "5,000 heads" in page.inner_text("#lead")
    assert page.locator("#charts figure .chart svg").count() >= page.locator("#charts figure").count() >= 7
