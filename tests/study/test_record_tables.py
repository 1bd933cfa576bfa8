"""The studies of record: where their data and encoders are, and the tables that no comparison lays out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from fusionkit.runs.comparison.ties import TIED

NONE = float("nan")


def test_the_score_at_each_rate_stands_beside_the_rates_and_the_best_is_bold(evidence: Any) -> None:
    rows = [
        ("frozen", "last", 2e-3, NONE, "a", 0.75), ("frozen", "last", 6e-4, NONE, "a", 0.5),
        ("frozen", "last", 6e-4, NONE, "b", 0.25), ("full", "last", 2e-3, 1e-4, "a", 0.9),
        ("full", "last", 2e-3, 5e-5, "a", 0.9),
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["method", "fusion", "lr", "encoder_lr", "data", "mean"])
    frame = frame.assign(metric="accuracy")
    assert evidence.grid_table(frame, ["method", "fusion", "lr", "encoder_lr", "data"], "data").splitlines() == [
        "| method | fusion | rates | a | b |",
        "| --- | --- | --- | --- | --- |",
        "| frozen | last | 0.0006 / 0.002 | 50.0 / **75.0** | **25.0** / – |",  # b was trained at one of them
        "| full | last | 5e-05 / 0.0001 | **90.0** / **90.0** |  |",
    ]


def test_the_guideline_names_the_best_the_ties_and_the_quickest_of_them(evidence: Any) -> None:
    rows = [
        ("a", 16, "frozen", "last", 0.5, False, 0.25), ("a", 16, "frozen", "linear", 0.75, True, 0.5),
        ("a", 16, "full", "last", 0.8, True, 100.0), ("a", NONE, "full", "attention", 0.9, True, 200.0),
        ("a", NONE, "frozen", "last", 0.6, False, 1.0),
    ]  # fmt: skip
    columns = ["data", "shots", "method", "fusion", "mean", "tied", "seconds_alone"]
    frame = pd.DataFrame(rows, columns=columns).rename(columns={"tied": TIED}).assign(metric="accuracy")
    assert evidence.guideline_table(frame).splitlines()[2:] == [
        "| a | 16 | `full` 80.0 | `linear` 75.0 | `linear`, 0.5 s | `linear` 75.0 |",
        "| a | all | `full` with `attention` 90.0 | – | `full` with `attention`, 200 s | `last` 60.0 |",
    ]


def test_a_perplexity_is_no_share_and_the_least_is_the_best(evidence: Any) -> None:
    rows = [("frozen", "last", 2e-3, "a", 12.5), ("frozen", "last", 6e-4, "a", 30.0)]
    frame = pd.DataFrame(rows, columns=["method", "fusion", "lr", "data", "mean"]).assign(metric="perplexity")
    made = evidence.grid_table(frame, ["method", "fusion", "lr", "data"], "data")
    assert made.splitlines()[2:] == ["| frozen | last | 0.0006 / 0.002 | 30.0 / **12.5** |"]


def test_the_guideline_names_the_best_where_nothing_was_tested(evidence: Any) -> None:
    rows = [
        ("a", NONE, "full", "last", "accuracy", 0.5, 3.0), ("b", 8, "frozen", "last", "perplexity", 12.5, 0.5),
        ("b", 8, "frozen", "linear", "perplexity", 11.0, 1.0), ("c", 8, "frozen", "last", "accuracy", NONE, NONE),
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["data", "shots", "method", "fusion", "metric", "mean", "seconds_alone"])
    untested = frame.assign(**{TIED: pd.array([None] * len(frame), dtype="boolean")})
    assert evidence.guideline_table(untested).splitlines()[2:] == [
        "| a | all | `full` 50.0 | – | `full`, 3.0 s | – |",
        "| b | 8 | `linear` 11.0 | – | `linear`, 1.0 s | `linear` 11.0 |",
    ]


def test_all_studies_of_record_find_their_data_and_copies_of_their_encoders(evidence: Any, tmp_path: Path) -> None:
    (tmp_path / "encoders" / "all-mpnet-base-v2").mkdir(parents=True)
    copy = str(tmp_path / "encoders" / "all-mpnet-base-v2")
    assert evidence.encoder_of("ladder-mpnet", tmp_path / "encoders") == [f"encoder={copy}"]
    assert evidence.encoder_of("figure8", tmp_path / "encoders") == []  # no copy: from the hub
    assert evidence.encoder_of("ladder-mpnet", None) == []

    data = tmp_path / "data"
    (data / "sst2").mkdir(parents=True)
    assert evidence.data_of(data, tmp_path / "work") == data
    (data / "xsid").mkdir()
    for split in ("valid", "test"):
        (data / "xsid" / f"de.{split}.conll").write_text("\n\n".join(f"# {i}\nJa" for i in range(5)), encoding="utf-8")
    made = evidence.data_of(data, tmp_path / "work")
    assert (made / "sst2").resolve() == data / "sst2"
    assert (made / "xsid-de" / "train.conll").read_text(encoding="utf-8").count("Ja") == 4
