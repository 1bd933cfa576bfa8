"""Tables of results for a terminal and for a paper: percents, bold bests, texts that LaTeX would misread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fusionkit.cli.console import out, table
from fusionkit.cli.tables.summary_table import summary_table
from fusionkit.fit import RunGroups, RunsFolder, summarise
from fusionkit.runs.record import flat_record
from fusionkit.runs.tables.format_cells import json_rows, score_text
from fusionkit.runs.tables.paper_tables import latex
from fusionkit.runs.tabulate import tabulate
from fusionkit.specs import RunSpec


def record(fusion: str, score: float | None, seed: int = 0, label: str = "tags", **fields: Any) -> dict[str, Any]:
    spec = RunSpec(
        store="s", task="tagging", label=label, fusion=fusion, head="tagger", data_seed=seed, init_seed=seed, **fields
    )
    return {
        "spec": spec.to_dict(), "status": "failed" if score is None else "finished", "data": "corpus",
        "evaluated": "corpus", "encoder": "minilm", "rows": "words", "sides": 1,
        "metric": score and "f1", "score": score, "validation_score": score,
        "fusion_parameters": 1000, "head_parameters": 234, "seconds": 1.5, "seconds_alone": 2.5,
    }  # fmt: skip


def summary(*records: dict[str, Any]) -> pd.DataFrame:
    return tabulate(pd.DataFrame([flat_record(each) for each in records]))


def printed(frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> list[str]:
    out().print(summary_table(frame))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_narrow_table_loses_options_of_training_before_what_names_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        record("last", 0.5, method=method, weight_decay=decay, label=label)
        for method, decay in (("full", 0.0), ("pals:204", 0.01))
        for label in ("tags", "pos")
    ]
    monkeypatch.setattr("fusionkit.cli.console.PIPE_WIDTH", 90)
    text = "\n".join(printed(summary(*records), capsys))
    assert "pals:204" in text
    assert "weight_decay" in text[text.index("left out for width") :]


def test_a_narrow_table_breaks_lines_between_words_as_long_as_the_words_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusionkit.cli.console.PIPE_WIDTH", 50)
    columns = [("", "left"), ("method + fusion", "left"), ("weights", "right")]
    rows = [["projected attention on top", "full + projected-attention:204", "1,163,388"], ["short", "a + b", "8"]]

    def lines() -> list[str]:
        out().print(table(None, columns, rows))
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    found = lines()
    assert max(map(len, found)) <= 50
    assert {*"".join(f"{line} " for line in found).split()} >= {"projected", "projected-attention:204", "1,163,388"}
    monkeypatch.setattr("fusionkit.cli.console.PIPE_WIDTH", 30)  # a word is broken, not cut
    assert "".join("".join(lines()).split()).count("1,163,388") == 1
    monkeypatch.setattr("fusionkit.cli.console.PIPE_WIDTH", 90)
    assert lines()[1].split("  ") == ["projected attention on top", "full + projected-attention:204", "1,163,388"]


def test_a_score_is_in_percent_with_its_deviation_where_there_is_one() -> None:
    nan = float("nan")
    assert score_text(0.7432, 0.0051) == "74.3 ± 0.5"
    assert score_text(0.7432, nan) == "74.3"
    assert score_text(nan, nan) == "–"


def test_latex_has_a_row_a_group_and_the_best_of_each_task_in_bold_with_what_ties() -> None:
    records = [record("last", 0.5), record("last", 0.7, 1), record("linear", 0.65), record("linear", 0.75, 1)]
    lines = latex(summary(*records, record("last", 0.2, label="pos"))).splitlines()
    assert lines == [
        r"\begin{tabular}{llllrrrr}",
        r"\toprule",
        r"task & label & fusion & scored on & score (\%) & 95\,\% interval & runs & parameters \\",
        r"\midrule",
        r"tagging & tags & last & test & \textbf{60.0} $\pm$ 14.1 & $-$67.1 \dots 187.1 & 2 & 1,234 \\",
        r"tagging & tags & linear & test & \textbf{70.0} $\pm$ 7.1 & 6.5 \dots 133.5 & 2 & 1,234 \\",
        r"tagging & pos & last & test & 20.0 & – & 1 & 1,234 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_latex_escapes_what_it_would_misread() -> None:
    lines = latex(summary(record("last", 0.5, label=r"50%_#1 {a} & \b $x ~y ^z"))).splitlines()
    escaped = r"50\%\_\#1 \{a\} \& \textbackslash{}b \$x \textasciitilde{}y \textasciicircum{}z"
    assert lines[4] == rf"tagging & {escaped} & last & test & 50.0 & – & 1 & 1,234 \\"
    grouped = summarise(RunGroups(pd.DataFrame([flat_record(record("last", 0.5))]), ["data_seed", "head"]))
    assert (
        latex(grouped).splitlines()[2]
        == r"data\_seed & head & scored on & score (\%) & 95\,\% interval & runs & parameters \\"
    )


def test_latex_of_failed_runs_has_no_score() -> None:
    assert latex(summary(record("last", None))).splitlines()[4].startswith(r"tagging & tags & last & – &")


@pytest.mark.parametrize("name", ["[bold]tags[/bold]", "a :fire: b"])
def test_brackets_and_names_of_emoji_stay_as_they_are(capsys: pytest.CaptureFixture[str], name: str) -> None:
    lines = printed(summary(record("last", 0.5, label=name)), capsys)
    assert name in lines[2]


def test_what_all_rows_share_stands_above_them(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(summary(record("last", 0.5), record("linear", 0.25)), capsys)
    assert lines[0] == "task tagging · label tags · scored on test · metric f1, %"
    assert lines[1].split() == [
        "fusion",
        "mean",
        "±",
        "std",
        "95",
        "%",
        "interval",
        "SE",
        "seeds",
        "SE",
        "examples",
        "runs",
        "parameters",
        "s",
        "alone",
    ]
    assert [line.split() for line in lines[2:]] == [
        ["last", "50.0", "–", "–", "–", "1", "1,234", "2.5"], ["linear", "25.0", "–", "–", "–", "1", "1,234", "2.5"]
    ]  # fmt: skip


def test_failed_runs_are_counted_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(summary(record("last", 0.5), record("last", None, 1), record("linear", None)), capsys)
    assert "1 + 1 failed" in lines[-2]
    assert "0 + 1 failed" in lines[-1]


def test_a_rate_and_a_draw_of_all_are_legible(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(summary(record("last", 0.5, lr=5e-4), record("last", 0.25, lr=2e-3, shots=8)), capsys)
    assert lines[0] == "task tagging · label tags · scored on test · metric f1, %"
    assert [line.split()[:4] for line in lines[1:]] == [
        ["fusion", "shots", "lr", "mean"], ["last", "–", "0.0005", "50.0"], ["last", "8", "0.002", "25.0"]
    ]  # fmt: skip


def test_records_that_were_written_are_what_the_table_is_made_of(tmp_path: Path) -> None:
    runs = RunsFolder(tmp_path)
    for seed, score in enumerate((0.25, 0.75)):
        one = record("last", score, seed)
        runs.write(RunSpec.from_dict(one["spec"]), one, {})
    assert summarise(RunGroups(runs.frame()))["mean"].tolist() == [0.5]


def test_json_has_every_digit_and_null_for_what_is_missing() -> None:
    frame = pd.DataFrame({
        "p": [3e-12, np.nan], "mean": [1.5, np.inf], "differs": ["lr", None],
        "pairs": pd.array([8, None], dtype="Int64"), "tied": pd.array([True, None], dtype="boolean"),
    })  # fmt: skip
    full, empty = json.loads(json.dumps(json_rows(frame), allow_nan=False))
    assert full == {"p": 3e-12, "mean": 1.5, "differs": "lr", "pairs": 8, "tied": True}
    assert empty == dict.fromkeys(full)
