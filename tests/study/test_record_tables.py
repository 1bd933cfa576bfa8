"""The studies of record: where their data and encoders are, and the tables that no comparison lays out."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fusionkit.errors import UsageError
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


def test_a_method_costs_its_weights_without_the_head_and_the_most_bytes_of_all_data(evidence: Any) -> None:
    rows = [("full", "a", "x", 100.25), ("full", "b", "y", NONE), ("frozen", "a", "z", 0.25)]
    frame = pd.DataFrame(rows, columns=["method", "data", "digest", "seconds_alone"])
    records = {
        digest: {
            "trained_parameters": trained, "head_parameters": 10, "encoder_parameters": 1_000_000,
            "kept_bytes": kept, "peak_memory_alone": 2_000_000,
        }
        for digest, trained, kept in (("x", 2_000_010, 100_000), ("y", 2_000_010, 800_000), ("z", 18, 40_000))
    }  # fmt: skip
    assert evidence.costs_table(frame, ["method", "data"], "data", records).splitlines() == [
        "| method | weights without the head | % of the encoder | MB a task | MB in a step | a s | b s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| full | 2,000,000 | 200 | 0.8 | 2.0 | 100 | – |",
        "| frozen | 8 | 0.00080 | 0.0 | 2.0 | 0.2 | – |",
    ]
    numbers = {0.0: "0", 3.5e-5: "0.000035", 1.0: "1.0", 9.94: "9.9", 9.96: "10", 198.7: "199"}
    assert {number: sys.modules["record_tables"].two_digits(number) for number in numbers} == numbers


def test_seconds_count_the_encoding_for_frozen_heads_and_say_when_it_pays(evidence: Any) -> None:
    """Of set a an encoding takes 100 s, of set b 10; on b the slowest frozen head takes as long as the method."""
    rows = [("frozen", "last", "a", 2.0), ("frozen", "ladder:8", "a", 30.0), ("frozen", "last", "b", 1.0),
            ("frozen", "ladder:8", "b", 50.0), ("full", "last", "a", 55.0), ("full", "last", "b", 50.0)]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["method", "fusion", "data", "seconds_alone"])
    frame = frame.assign(digest=frame["data"])
    records = {digest: {"spec": {"store": f"store {digest}"}} for digest in ("a", "b")}
    encoding = {"store a": {"seconds": {"train": 70.0, "test": 30.0}}, "store b": {"seconds": {"train": 10.0}}}
    by = ["method", "fusion", "data"]
    assert evidence.seconds_table(frame, by, "data", records, encoding).splitlines() == [
        "| method | fusion | a s | b s |",
        "| --- | --- | --- | --- |",
        "| frozen | last | 102 / 12 / 3.0 | 11 / 2.0 / 1.1 |",
        "| frozen | ladder:8 | 130 / 40 / 31 | 60 / 51 / 50 |",
        "| full | last | 55 (5) | 50 (–) |",
    ]


def test_a_budget_has_the_best_method_that_takes_no_longer(evidence: Any) -> None:
    rows = [("a", NONE, "frozen", "last", 0.5, 0.25), ("a", NONE, "frozen", "ladder:8", 0.75, 61.0),
            ("a", NONE, "full", "last", 0.9, 251.0), ("b", 8, "full", "last", 0.9, 60.0)]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["data", "shots", "method", "fusion", "mean", "seconds_alone"])
    encoding = {
        "store a": {"data": "a", "seconds": {"train": 10.0, "test": 2.0}},
        "store b": {"data": "b", "seconds": {}},
    }
    assert evidence.budgets_table(evidence.from_text(frame.assign(metric="accuracy"), encoding)).splitlines() == [
        "| data | shots | at most 30 s | at most 120 s | at most 300 s | any |",
        "| --- | --- | --- | --- | --- | --- |",
        "| a | all | `last` 50.0, 12 s | `ladder:8` 75.0, 73 s | `full` 90.0, 251 s | `full` 90.0, 251 s |",
        "| b | 8 | – | `full` 90.0, 60 s | `full` 90.0, 60 s | `full` 90.0, 60 s |",
    ]


TABLE = """\
| method | fusion | metric | a F1 | b |
| --- | --- | --- | --- | --- |
| frozen | last | f1 | **1.0** | 2.0 |
| full | last | f1 | 3.0 | 4.0 |

a note
"""


def test_the_papers_numbers_stand_in_columns_or_lines_of_the_table(evidence: Any) -> None:
    entry = {"of": "table 1", "heads": ["a F1", "b"], "values": {"full last": [5.5, None]}}
    assert evidence.with_published(TABLE, entry).splitlines() == [
        "| method | fusion | metric | a F1 | *paper* | b | *paper* |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| frozen | last | f1 | **1.0** |  | 2.0 |  |",
        "| full | last | f1 | 3.0 | 5.5 | 4.0 |  |",
        "",
        "a note",
        "",
        "*paper*: table 1",
    ]
    below = evidence.with_published(TABLE, entry | {"lines": True}).splitlines()
    assert below[:5] == [*TABLE.splitlines()[:4], "| *paper* |  |  | 5.5 |  |"]


@pytest.mark.parametrize(("key", "value"), [("heads", ["c"]), ("values", {"full first": [1.0]})])
def test_numbers_that_the_table_has_no_place_for_are_refused(evidence: Any, key: str, value: Any) -> None:
    entry = {"of": "table 1", "heads": ["b"], "values": {"full last": [1.0]}} | {key: value}
    with pytest.raises(UsageError, match=r"unknown (column|line) of the table"):
        evidence.with_published(TABLE, entry)


def test_all_published_numbers_stand_in_the_results(evidence: Any) -> None:
    texts = [path.read_text(encoding="utf-8") for path in evidence.DOCUMENTS]
    marks = [mark for text in texts for mark in evidence.MARK.finditer(text)]
    with_paper = [mark for mark in marks if "paper=yes" in mark[4]]
    names = {" ".join([mark[2], mark[3], *re.findall(r"show=(\S+)", mark[4])]) for mark in with_paper}
    assert names == set(evidence.published())
