"""Which test examples a mean or a difference is over: of several stores, of several columns, of several tasks."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fusionkit.fit import RunGroups, compare, summarise
from fusionkit.report.display_names import named
from fusionkit.report.report_data import ReportData
from fusionkit.report.tables import compared as report_of
from fusionkit.runs.errors_of_means import scored_runs
from fusionkit.runs.example_scores import ExampleScores
from fusionkit.runs.record import flat_record
from fusionkit.runs.tables.comparison_notes import comparison_notes
from fusionkit.specs import RunSpec
from fusionkit.statistics.kept_answers import CLASS, KeptAnswers, RunAnswers

Run = tuple[dict[str, Any], RunAnswers]
# Of four examples two are right, a variance of 1/3, or one. Their difference has a mean of 1/4 and a variance of 1/4.
TWO, ONE = [1, 1, 0, 0], [0, 1, 0, 0]


def answers(hits: list[int], gold: int = 0) -> KeptAnswers:
    """Answers that are right or wrong; ``gold``, 0 or 1, chooses the gold answers."""
    told = (np.arange(len(hits)) + gold) % 2
    found = np.where(np.array(hits, dtype=bool), told, 1 - told)
    return KeptAnswers(CLASS, {"told": told.astype(np.uint8), "found": found.astype(np.uint8)}, ("a", "b"))


def run(parts: dict[str, KeptAnswers], seed: int = 0, **fields: Any) -> Run:
    """A run with its answers by task; with several tasks it is the row of their mean."""
    names, kept = set(RunSpec.__dataclass_fields__), RunAnswers(parts)
    spec: dict[str, Any] = {"store": "s", "task": "classification", "label": "intent", "fusion": "last"}
    spec |= {"head": "classifier", "data_seed": seed, "init_seed": seed}
    spec |= {name: value for name, value in fields.items() if name in names}
    metric = "accuracy" if len(parts) == 1 else "mean"
    record = {
        "spec": RunSpec(**spec).to_dict(), "status": "finished", "data": "corpus", "evaluated": "corpus",
        "encoder": "minilm", "rows": "mean", "sides": 1, "metric": metric, "score": kept.scores()[metric],
        "validation_score": 0.5, "fusion_parameters": 8, "head_parameters": 100,
    } | {name: value for name, value in fields.items() if name not in names}  # fmt: skip
    return flat_record(record) | ({} if len(parts) == 1 else {"task": "mean"}), kept


def framed(*runs: Run) -> tuple[pd.DataFrame, ExampleScores]:
    kept = {row["digest"]: {row["evaluated"]: found} for row, found in runs}
    return pd.DataFrame([row for row, _ in runs]), ExampleScores(kept.__getitem__)


@pytest.mark.parametrize(("store", "variance", "examples"), [("s", 1 / 12, 4), ("t", 1 / 24, 8)])
def test_columns_of_one_store_are_one_test_set_and_two_stores_of_one_name_are_not(
    store: str, variance: float, examples: int
) -> None:
    """The same examples are right in both columns, so their mean varies as each of them does, by 1/3 over 4."""
    frame, kept = framed(run({"": answers(TWO)}), run({"": answers(TWO, gold=1)}, label="topic", store=store))
    [row] = summarise(RunGroups(frame, ["fusion"], average=["label"], answers=kept)).to_dict(orient="records")
    assert row["se_examples"] == pytest.approx(math.sqrt(variance))
    assert row["test_examples"] == examples


def test_a_difference_in_columns_of_one_store_has_their_examples_once() -> None:
    """In both columns the first example alone differs: a mean of 1/4, and a variance of 1/4 over 4."""
    columns = {"intent": 0, "topic": 1}
    hits = {"last": ONE, "linear": TWO}
    frame, kept = framed(*(
        run({"": answers(right, gold)}, label=label, fusion=fusion)
        for label, gold in columns.items() for fusion, right in hits.items()
    ))  # fmt: skip
    found = compare(RunGroups(frame, ["fusion"], average=["label"], answers=kept), "last").set_index("fusion")
    row = found.loc["linear"]
    assert (row["difference"], row["difference_se_examples"]) == (0.25, pytest.approx(0.25))
    assert row["p"] == pytest.approx(2 * stats.t.sf(1, 3))


def test_columns_are_one_test_set_where_stores_to_train_on_differ_and_the_last_judges() -> None:
    frame, kept = framed(
        run({"": answers(TWO)}, store="en", mix="en,s:5%"), run({"": answers(TWO, gold=1)}, label="topic")
    )
    table = summarise(RunGroups(frame, ["fusion"], average=["label", "mix", "store"], answers=kept))
    assert table["test_examples"].tolist() == [4]


@pytest.mark.parametrize(
    ("stores", "mrpc", "variance"),
    [("a,b", [1, 0], (1 / 12 + 1 / 4) / 4), ("a,b", TWO, (1 / 12 + 1 / 12) / 4), ("a,a", TWO, 1 / 12)],
    ids=["other sizes", "one size", "one store"],
)
def test_tasks_over_stores_of_their_own_have_test_sets_of_their_own(
    stores: str, mrpc: list[int], variance: float
) -> None:
    frame, kept = framed(run({"sst2": answers(TWO), "mrpc": answers(mrpc, gold=1)}, task_stores=stores))
    table = summarise(RunGroups(frame, ["fusion"], answers=kept))
    assert table.attrs["over"] == "examples"
    assert table["se_examples"].tolist() == pytest.approx([math.sqrt(variance)])


def test_the_mean_of_tasks_of_other_sizes_is_tested_over_seeds_and_examples() -> None:
    """All seeds agree and mrpc does not differ: half the difference on sst2, 1/4, and half its error over examples."""
    hits = {"last": ONE, "linear": TWO}
    frame, kept = framed(*(
        run({"sst2": answers(right), "mrpc": answers([1, 0], 1)}, seed, fusion=fusion, task_stores="a,b")
        for fusion, right in hits.items() for seed in range(3)
    ))  # fmt: skip
    compared = compare(RunGroups(frame, ["fusion"], answers=kept), "last")
    row = compared.set_index("fusion").loc["linear"]
    assert (row["difference"], row["difference_se_examples"]) == (0.125, pytest.approx(0.125))
    assert row["p"] == pytest.approx(2 * stats.t.sf(1, 3))
    assert np.isnan(row["smallest_p"])
    assert not any(note.startswith("no difference can be significant") for note in comparison_notes(compared))


def test_a_row_whose_sides_answered_other_examples_is_named_and_says_nothing_of_the_others() -> None:
    hits = {"last": (ONE, 0), "linear": (TWO, 0), "concat": (TWO, 1)}
    frame, kept = framed(*(
        run({"": answers(*right)}, seed, fusion=fusion) for fusion, right in hits.items() for seed in range(3)
    ))  # fmt: skip
    compared = compare(RunGroups(frame, ["fusion"], answers=kept), "last")
    smallest = compared.set_index("fusion")["smallest_p"]
    assert (smallest["concat"], np.isnan(smallest["linear"])) == (0.25, True)
    notes = comparison_notes(compared)
    assert "tested over seeds alone, because answers on the same test examples are missing: concat" in notes
    assert not any(note.startswith("no difference can be significant") for note in notes)
    study = ReportData([], {}, named(frame), {})
    vars(study)["answers"] = kept
    assert not any("With so few seeds" in note for note in report_of(study)[1])


def test_an_average_over_data_sets_with_one_seed_has_intervals_over_examples() -> None:
    frame, kept = framed(*(run({"": answers(TWO)}, data=data, evaluated=data, store=data) for data in ("de", "fr")))
    table = summarise(RunGroups(frame, ["fusion"], average=["data"], answers=kept))
    assert table.attrs["over"] == "examples"
    half = stats.t.ppf(0.975, 6) * math.sqrt(1 / 24)
    assert table["high"].tolist() == pytest.approx([0.5 + half])


def test_draws_have_the_same_weight_over_examples_as_in_the_difference() -> None:
    """Two runs of a draw gain two examples, the run of another loses one: 0.5 and −0.25. By draws, ±1 ± 1 ± 1 is always
    as far off as 1 + 1 − 1; by runs, ±2 ± 2 ± 1 is as far off as 2 + 2 − 1 in half of the swaps.
    """
    hits = {"last": ([0, 0, 0, 0], [0, 0, 1, 0]), "linear": ([1, 1, 0, 0], [0, 0, 0, 0])}
    frame, kept = framed(*(
        run({"": answers(by_draw[draw])}, draw, fusion=fusion, init_seed=init)
        for fusion, by_draw in hits.items() for draw, init in ((0, 0), (0, 1), (1, 2))
    ))  # fmt: skip
    found = compare(RunGroups(frame, ["fusion"], answers=kept), "last", over="examples").set_index("fusion")
    row = found.loc["linear"]
    assert (row["difference"], row["p"]) == (0.125, 1.0)
    # Of 1/2, 1/2, −1/2 and 0.
    assert row["difference_se_examples"] == pytest.approx(math.sqrt(11 / 192))


def test_values_of_runs_are_held_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusionkit.runs.example_scores.HELD", 2 * 4 * 8)  # of two runs with four examples
    given = [run({"": answers(TWO)}, seed) for seed in range(3)]
    kept = {row["digest"]: {row["evaluated"]: found} for row, found in given}
    read = Mock(side_effect=kept.__getitem__)
    scores, (a, b, c) = ExampleScores(read), scored_runs(framed(*given)[0])
    for each in (a, b, a, c, a, b):
        assert scores.of(each)
    assert [call.args[0] for call in read.call_args_list] == [each.digest for each in (a, b, c, b)]
