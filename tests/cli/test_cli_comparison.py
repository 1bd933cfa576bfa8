"""``fusionkit results --baseline``: what a user sees, in each format, and what is said beside the numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from fusionkit.cli import results as command
from fusionkit.cli.tables import summary_table
from fusionkit.fit import RunsFolder
from fusionkit.specs import RunSpec

Command = Callable[..., Any]
SCORES = {
    "last": [0.50, 0.61, 0.55, 0.58, 0.52, 0.54, 0.57, 0.51],
    "linear": [0.55, 0.65, 0.62, 0.66, 0.57, 0.60, 0.64, 0.55],
    "attention": [0.52, 0.60, 0.55, 0.59, 0.51, 0.56, 0.55, 0.52],
}


@pytest.fixture
def keep(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder of runs: scores by fusion, one a seed."""

    def write(scores: dict[str, list[float]], metric: str = "f1", **fields: Any) -> Path:
        runs = RunsFolder(tmp_path / "runs")
        for fusion, found in scores.items():
            for seed, score in enumerate(found):
                spec = RunSpec(
                    store="s", task="tagging", label="tags", fusion=fusion, head="tagger", data_seed=seed,
                    init_seed=seed, **fields,
                )  # fmt: skip
                record = {
                    "spec": spec.to_dict(), "status": "finished", "data": "corpus", "evaluated": "corpus",
                    "encoder": "minilm", "rows": "words", "sides": 1, "metric": metric,
                    "score": score, "validation_score": score, "fusion_parameters": 8, "head_parameters": 100,
                    "seconds": 1.0, "seconds_alone": 2.0,
                }  # fmt: skip
                runs.write(spec, record, {})
        return runs.path

    return write


def test_the_table_shows_differences_with_their_significance(fusionkit: Command, keep: Callable[..., Path]) -> None:
    done = fusionkit("results", keep(SCORES), "--baseline", "last")
    assert (done.code, done.err) == (0, "")
    rows = {line.split()[0]: line for line in done.out.splitlines()[2:5]}
    assert "baseline" in rows["last"]
    # All eight differences have one sign: 2 / 2⁸, twice for two comparisons.
    assert f"{2 * 2 / 2**8:.3f}*" in rows["linear"]
    assert "8–0–0" in rows["linear"]
    assert "4–1–3" in rows["attention"]
    assert "*" not in rows["attention"]
    assert "Holm's correction for 2 comparisons" in done.out


def test_csv_and_json_have_every_number_and_notes_apart(fusionkit: Command, keep: Callable[..., Path]) -> None:
    runs = keep(SCORES)
    as_json = fusionkit("results", runs, "--baseline", "last", "--json")
    as_csv = fusionkit("results", runs, "--baseline", "last", "--format", "csv")
    assert "Holm's correction" in as_json.err
    assert "Holm's correction" in as_csv.err
    rows = list(csv.DictReader(io.StringIO(as_csv.out)))
    assert [set(row) for row in rows] == [set(row) for row in as_json.json]
    [ours] = [row for row in rows if row["fusion"] == "linear"]
    [theirs] = [row for row in as_json.json if row["fusion"] == "linear"]
    assert (ours["wins"], theirs["wins"]) == ("8", 8)
    assert float(ours["p"]) == theirs["p"] == 2 / 2**8
    assert float(ours["difference_high"]) == theirs["difference_high"]  # to the last digit


def test_latex_marks_the_best_and_the_significant(fusionkit: Command, keep: Callable[..., Path]) -> None:
    done = fusionkit("results", keep(SCORES), "--baseline", "last", "--format", "latex")
    assert done.err == ""
    lines = done.out.splitlines()
    assert any(line.startswith("% paired differences to fusion=last") for line in lines[:3])
    [linear] = [line for line in lines if " linear " in line]
    mean = sum(SCORES["linear"]) / 8
    assert rf"& \textbf{{{100 * mean:.1f}}}$^{{*}}$ $\pm$" in linear
    assert "& 0.016 & 8--0--0 & 8 & 108" in linear
    assert f"$+${100 * (mean - sum(SCORES['last']) / 8):.1f}" in linear
    [attention] = [line for line in lines if " attention " in line]
    assert "textbf" not in attention
    assert "*" not in attention
    header = next(line for line in lines if line.startswith("task"))
    assert header.count("&") == linear.count("&") == lines[lines.index(header) - 2].count("r") + 2


def test_of_perplexities_the_least_is_best_and_wins(fusionkit: Command, keep: Callable[..., Path]) -> None:
    done = fusionkit("results", keep(SCORES, "perplexity"), "--baseline", "last", "--format", "latex")
    # A paired test does not tell attention from it.
    bold = [line.split(" & ")[2] for line in done.out.splitlines() if "textbf" in line]
    assert bold == ["last", "attention"]
    assert "0--0--8" in done.out


def test_three_seeds_cannot_be_significant_and_the_tool_says_so(fusionkit: Command, keep: Callable[..., Path]) -> None:
    few = {name: scores[:3] for name, scores in SCORES.items()}
    said = "no difference can be significant here: p is 0.25 at the least with 3 seeds, 0.5 after correction"
    done = fusionkit("results", keep(few), "--baseline", "last")
    assert f"{said}; 7 seeds could" in done.out  # 2 · 2 / 2⁷ is 0.03, 2 · 2 / 2⁶ is 0.06
    alone = fusionkit("results", keep(few), "--baseline", "last", "--correction", "none").out
    assert "p is 0.25 at the least with 3 seeds; 6 seeds could" in alone
    bootstrap = fusionkit("results", keep(few), "--baseline", "last", "--test", "bootstrap").out
    assert "with 3 seeds the bootstrap's p-values are too small" in bootstrap


def test_enough_seeds_are_no_news(fusionkit: Command, keep: Callable[..., Path]) -> None:
    assert "no difference can" not in fusionkit("results", keep(SCORES), "--baseline", "last").out


def test_runs_without_a_partner_are_told(fusionkit: Command, keep: Callable[..., Path]) -> None:
    done = fusionkit("results", keep(SCORES | {"linear": SCORES["linear"][:6]}), "--baseline", "last")
    assert "runs without a partner, left out of the differences: 2 (linear)" in done.out


def test_what_else_differs_is_told(fusionkit: Command, keep: Callable[..., Path]) -> None:
    keep({"last": SCORES["last"]})
    runs = keep({"linear": SCORES["linear"]}, lr=0.1)
    done = fusionkit("results", runs, "--by", "fusion", "--baseline", "last")
    assert "differ from the baseline also in lr: linear" in done.out


def test_intervals_can_be_of_the_bootstrap(fusionkit: Command, keep: Callable[..., Path]) -> None:
    runs = keep(SCORES)
    by_t, by_draws = (fusionkit("results", runs, "--interval", name, "--json").json for name in ("t", "bootstrap"))
    for one, other in zip(by_t, by_draws, strict=True):
        assert one["low"] < other["low"] < one["mean"] < other["high"] < one["high"]
    assert by_draws == fusionkit("results", runs, "--interval", "bootstrap", "--json").json


@pytest.mark.parametrize("width", [60, 80, 100, 130])
def test_a_terminal_gets_a_table_that_fits(
    width: int, fusionkit: Command, keep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(SCORES, lr=0.001)
    runs = keep({f"linear:gamma=no,norm=token-{name}": scores for name, scores in SCORES.items()}, lr=0.01, shots=16)
    wide = fusionkit("results", runs, "--baseline", "lr=0.01", "--by", "lr", "--by", "fusion").err
    assert "nothing to compare" in wide
    for module in (command, summary_table):  # who prints the table, and who makes it fit
        monkeypatch.setattr(module, "out", lambda: Console(width=width, markup=False, highlight=False))
    for options in ((), ("--by", "fusion", "--by", "lr", "--baseline", "fusion=last")):
        lines = fusionkit("results", runs, *options).out.splitlines()
        assert max(map(len, lines)) <= width
        assert any("left out for width: s alone, parameters" in line for line in lines) == (
            width < 130 or options != ()
        )
        shown = "".join(lines)
        assert "last" in shown
        assert "…" not in shown.replace(" … ", "")  # nothing is cut


@pytest.mark.parametrize("option", [("--test", "bootstrap"), ("--correction", "holm"), ("--block", "data")])
def test_a_test_without_a_baseline_is_refused(
    option: tuple[str, str], fusionkit: Command, keep: Callable[..., Path]
) -> None:
    done = fusionkit("results", keep(SCORES), *option)
    assert done.code == 2
    assert f"{option[0]} compares nothing without a baseline" in done.err


def test_a_wrong_baseline_is_one_message(fusionkit: Command, keep: Callable[..., Path]) -> None:
    done = fusionkit("results", keep(SCORES), "--baseline", "liner")
    assert (done.code, done.out) == (2, "")
    assert "did you mean 'linear'?" in done.err


def test_the_table_is_a_frame_for_python(keep: Callable[..., Path]) -> None:
    import fusionkit as package

    frame = package.results(keep(SCORES))
    assert isinstance(frame, pd.DataFrame)
    means = frame.groupby("fusion")["score"].mean().to_dict()
    assert means == pytest.approx({name: sum(scores) / 8 for name, scores in SCORES.items()})
