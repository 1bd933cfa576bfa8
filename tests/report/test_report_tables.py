"""What the tables of a page say of its runs: marks, rates, the baseline, and places whose names are no UTF-8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fusionkit.cli.report import report
from fusionkit.errors import UsageError
from fusionkit.report import FIGURES
from fusionkit.report.content import _encode
from fusionkit.report.report_data import read_report_data
from fusionkit.report.tables import compared, groups_table, runs_table
from fusionkit.report.write import fill_page, json_for_html
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec


def write_runs(
    folder: Path, score: float = 0.5, metric: str = "f1", layers: tuple[int, ...] = (6,), **options: Any
) -> None:
    """Write the records of two seeds of a run with these options, or of the seed that is among them."""
    usual: dict[str, Any] = {"store": "s", "task": "tagging", "label": "tags", "head": "tagger", "fusion": "last"}
    for seed in (0,) if "data_seed" in options else (0, 1):
        spec = RunSpec(**{**usual, "data_seed": seed, "init_seed": seed, **options})
        told = {"status": "finished", "data": "corpus", "encoder": "e", "rows": "tokens", "metric": metric}
        scores = {"score": score, "validation_score": score, "scores": {"validation": {metric: score}}}
        own = {"layers": [*layers], "evaluated": "corpus", "sides": 1, "init_data": None, "seconds": 1.0}
        costs = {"fusion_parameters": 8, "head_parameters": 100, "seconds_alone": 1.0}
        RunsFolder(folder).write(spec, {"spec": spec.to_dict(), **told, **scores, **own, **costs}, {})


def test_a_head_below_the_majority_is_judged_by_its_score(tmp_path: Path) -> None:
    scores = {"label": ("accuracy", 0.6), "tags": ("f1", 0.0), "number": ("pearson", -0.1)}
    for label, (metric, score) in scores.items():
        for fusion in ("last", "majority"):
            write_runs(tmp_path, score, metric, label=label, fusion=fusion)
    marked = {note.partition(": ")[2] for note in compared(read_report_data([tmp_path]))[1] if note.startswith("†")}
    assert marked == {
        "accuracy cannot tell such a head from none. `fusionkit results --metric matthews` or `--metric macro_f1` can.",
        "by F1 such a head learned nothing.", "by Pearson's r such a head learned nothing.",
    }  # fmt: skip


def test_the_rate_of_a_trained_encoder_stands_beside_that_of_the_head(tmp_path: Path) -> None:
    write_runs(tmp_path, 0.6)
    for rate, score in ((5e-5, 0.9), (2e-4, 0.8)):
        write_runs(tmp_path, score, method="full", encoder_lr=rate)
    study = read_report_data([tmp_path])
    groups = groups_table(study, compared(study)[0])["rows"]
    assert {row[2]["t"]: row[-1]["t"] for row in groups} == {
        "last": "lr 0.002, 10 epochs, tagger", "last · full": "lr 0.002, encoder lr 5e-05, 10 epochs, tagger"
    }  # fmt: skip
    assert {row[5]["t"] for row in runs_table(study)["rows"]} == {
        "0.002", "0.002, encoder lr 5e-05", "0.002, encoder lr 0.0002"
    }  # fmt: skip


def test_methods_without_the_usual_baseline_are_told_why_they_have_none(tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        for fusion in ("last", "linear"):
            write_runs(tmp_path, fusion=fusion, compute_dtype=dtype)
    study = read_report_data([tmp_path])
    table, notes = compared(study)
    assert table["difference"].isna().all()
    assert "Not compared with last: unknown method of these results 'last'." in notes
    table, notes = compared(study, "last compute dtype float32")
    assert table["is_baseline"].sum() == 1
    assert not any(note.startswith("Not compared") for note in notes)


def test_a_baseline_may_have_an_option_that_is_named_like_a_column(tmp_path: Path) -> None:
    name = "attention:heads=2,dropout=0.1"
    for fusion, score in (("last", 0.5), (name, 0.75)):
        write_runs(tmp_path, score, fusion=fusion)
    table, _ = compared(read_report_data([tmp_path]), name)
    assert table.set_index("method")["is_baseline"].to_dict() == {"last": False, name: True}
    assert table.set_index("method")["difference"]["last"] == pytest.approx(-0.25)


def test_precisions_are_told_apart_by_what_a_task_needs_of_the_encoder(tmp_path: Path) -> None:
    scores = {("float32", 3): 0.5, ("float32", 1): 0.4, ("bfloat16", 3): 0.7, ("bfloat16", 1): 0.6}
    for (dtype, k), score in scores.items():
        layers = tuple(range(k + 1))
        read = ",".join(map(str, layers))
        write_runs(tmp_path, score, layers=layers, fusion="attention", fusion_layers=read, compute_dtype=dtype)
    found = FIGURES["layers-needed"].data(read_report_data([tmp_path]))
    assert found is not None
    shown = {(row.method, row.k): row.score for row in found.itertuples()}
    assert shown == {
        (f"attention over 0 … k compute dtype {dtype}", k): pytest.approx(100 * score)
        for (dtype, k), score in scores.items()
    }


def test_a_name_that_is_no_utf_8_is_written_as_an_escape() -> None:
    name = "caf\udce9"  # as Python reads a path with the byte E9
    assert json.loads(json_for_html([name]).encode()) == [name]
    assert b"<title>caf\\udce9</title>" in fill_page({"title": name}).encode()


def test_a_place_of_stores_that_holds_none_is_refused(made: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, received in (("typo.store", "a path that does not exist"), ("empty", "no manifest.json in it")):
        given = [str(made.runs), "--out", str(tmp_path / "page.html"), "--store", str(made.store)]
        with pytest.raises(UsageError, match=f"{name} holds no finished store") as refused:
            CliRunner().invoke(report, [*given, "--store", str(tmp_path / name)], catch_exceptions=False)
        assert received in str(refused.value)
    assert not (tmp_path / "page.html").exists()


def test_the_command_of_a_store_that_is_gone_has_what_the_record_has() -> None:
    record = {"data": "trec (first 1,000)", "encoder": "a/b", "rows": "mean"}
    told = _encode({**record, "encoding": {"encoder": {"revision": "c0ffee"}}}, None)
    wanted = "fusionkit encode trec --encoder a/b --encoder-revision c0ffee --rows mean --limit 1000 --out trec.store"
    assert told == wanted


def test_the_notes_name_the_test_that_was_used_and_say_when_none_can_be_significant(tmp_path: Path) -> None:
    for seed in range(3):
        for fusion, score in (("last", 0.5), ("linear", 0.6 + seed / 100)):
            write_runs(tmp_path / "few", score, fusion=fusion, data_seed=seed, init_seed=seed)
            for other in range(3):
                write_runs(tmp_path / "crossed", score + other / 50, fusion=fusion, data_seed=seed, init_seed=other)
    few, crossed = (compared(read_report_data([tmp_path / name]))[1] for name in ("few", "crossed"))
    assert any("p by sign-flip permutation test over seeds, corrected by Holm" in note for note in few)
    assert "No difference can be significant here: p is 0.25 at the least with 3 seeds; 6 seeds could." in few
    assert any("p by Student's test over seeds" in note for note in crossed)
    assert not any("can be significant" in note for note in crossed)
