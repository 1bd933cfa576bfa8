"""Selectivity is the mean paired difference of runs and their control runs, with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fusionkit.cli.tables.summary_table import summary_table
from fusionkit.runs import probing
from fusionkit.runs.choice import best_run
from fusionkit.runs.probing import plain_runs, with_probing
from fusionkit.runs.record import flat_record
from fusionkit.runs.summary import RunGroups, summarise
from fusionkit.runs.tables.paper_tables import latex, markdown
from fusionkit.specs import RunSpec


def runs(scores: Mapping[tuple[str, bool], list[float]]) -> pd.DataFrame:
    """By fusion and control the scores of the seeds, as a folder's frame has them."""
    rows = []
    for (fusion, control), values in scores.items():
        for seed, value in enumerate(values):
            spec = RunSpec(
                store="s", task="tagging", label="pos", fusion=fusion, head="tagger", pool=None, control=control,
                data_seed=seed, init_seed=seed,
            )  # fmt: skip
            rows.append(flat_record({
                "spec": spec.to_dict(), "data": "d", "evaluated": "d", "encoder": "e", "rows": "words", "sides": 1,
                "status": "finished", "metric": "accuracy", "score": value, "validation_score": value,
                "fusion_parameters": 0, "head_parameters": 8,
            }))  # fmt: skip
    return pd.DataFrame(rows)


REAL, CONTROL = [0.9, 0.92, 0.97], [0.5, 0.6, 0.4]


def test_selectivity_is_a_paired_difference_with_students_interval() -> None:
    every = runs({("last", False): REAL, ("last", True): CONTROL, ("linear", False): [0.8, 0.81, 0.82]})
    groups = RunGroups(plain_runs(every))
    found = with_probing(summarise(groups), groups, every)
    last, linear = found.to_dict(orient="records")
    differences = np.subtract(REAL, CONTROL)
    interval = stats.t.interval(0.95, 2, differences.mean(), stats.sem(differences))
    assert (last["fusion"], last["runs"], last["controls"]) == ("last", 3, 3)
    assert last["mean"] == pytest.approx(np.mean(REAL))
    assert last["control_score"] == pytest.approx(0.5)
    assert last["selectivity"] == pytest.approx(differences.mean())
    assert (last["selectivity_low"], last["selectivity_high"]) == pytest.approx(interval)
    assert np.isnan(linear["selectivity"])
    assert "| 50.0 | +43.0 |" in markdown(found)
    assert "& 50.0 & $+$43.0 &" in latex(found)
    heads = [str(column.header) for column in summary_table(found).columns]
    assert heads[heads.index("control") : heads.index("control") + 2] == ["control", "selectivity"]


def test_a_run_without_its_control_is_in_no_pair_and_without_any_nothing_is_added() -> None:
    every = runs({("last", False): REAL, ("last", True): CONTROL[:2]})
    groups = RunGroups(plain_runs(every))
    summary = summarise(groups)
    [row] = with_probing(summary, groups, every).to_dict(orient="records")
    assert (row["runs"], row["controls"]) == (3, 2)
    assert row["selectivity"] == pytest.approx(np.mean([0.4, 0.32]))
    assert list(with_probing(summary, groups, groups.frame).columns) == list(summary.columns)


def test_each_selectivity_stands_beside_its_own_group() -> None:
    """An average over fusions has no group of floors."""
    every = runs({("majority", False): [0.3], ("last", False): REAL, ("last", True): CONTROL})
    groups = RunGroups(plain_runs(every), ["label"], average=["fusion"])
    [row] = with_probing(summarise(groups), groups, every).to_dict(orient="records")
    assert (row["runs"], row["controls"]) == (3, 3)


def test_each_run_is_looked_up_once_however_many_groups_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    fusions = ("last", "linear", "concat")
    every = runs({(fusion, control): REAL for fusion in fusions for control in (False, True)})
    groups = RunGroups(plain_runs(every))
    summary, keys = summarise(groups), Mock(wraps=probing._keys)
    monkeypatch.setattr(probing, "_keys", keys)
    assert with_probing(summary, groups, every)["controls"].tolist() == [3, 3, 3]
    assert sum(len(call.args[0]) for call in keys.call_args_list) == len(every)


def test_a_control_run_is_never_the_best() -> None:
    every = runs({("last", False): [0.6], ("last", True): [0.99]})
    [wanted] = plain_runs(every)["digest"]
    assert best_run(every) == wanted


def test_a_code_is_the_sum_of_its_blocks_and_the_mean_is_over_seeds_that_have_all() -> None:
    frame = runs({("last", False): REAL})
    blocks = []
    for seed, missing in ((0, None), (1, None), (2, 4)):
        plain = frame[frame["data_seed"] == seed].to_dict(orient="records")[0]
        blocks += [
            {**plain, "mdl": block, "code_length": 10.0 * (seed + 1) * block, "uniform_length": 100.0}
            for block in range(1, 11)
            if block != missing
        ]
    every = pd.concat([frame, pd.DataFrame(blocks)], ignore_index=True)
    groups = RunGroups(plain_runs(every))
    assert len(groups.frame) == 3
    found = with_probing(summarise(groups), groups, every)
    [row] = found.to_dict(orient="records")
    assert (row["codes"], row["runs"]) == (2, 3)
    assert row["code_bits"] == pytest.approx(np.mean([550, 1100]))
    assert row["compression"] == pytest.approx(np.mean([1000 / 550, 1000 / 1100]))
    assert (row["code_low"], row["code_high"]) == pytest.approx(stats.t.interval(0.95, 1, 825, stats.sem([550, 1100])))
    assert "| 0.8 ± 0.4 | 1.36 |" in markdown(found)
    assert "& 0.8 $\\pm$ 0.4 & 1.36 &" in latex(found)


def coded(frame: pd.DataFrame, bits: list[float]) -> pd.DataFrame:
    """The runs and the blocks of their codes, of these lengths in all."""
    blocks = [
        {**plain, "mdl": block, "code_length": length / 10, "uniform_length": 100.0}
        for plain, length in zip(frame.to_dict(orient="records"), bits, strict=True)
        for block in range(1, 11)
    ]
    return pd.concat([frame, pd.DataFrame(blocks)], ignore_index=True)


def probed(every: pd.DataFrame, average: tuple[str, ...] = ()) -> dict[Any, Any]:
    groups = RunGroups(plain_runs(every), ["fusion"], average=average)
    [row] = with_probing(summarise(groups), groups, every).to_dict(orient="records")
    return row


def test_crossed_draws_and_init_seeds_count_in_selectivity_and_codes() -> None:
    """2 and 4 in one draw, 3 and 5 in the other: mean squares of 1 and 4 and a rest of 0, so V = 5 / 4, ν = 5² / 17."""
    grid = {"data_seed": [0, 0, 1, 1], "init_seed": [0, 1, 0, 1]}
    half = stats.t.ppf(0.975, 25 / 17) * np.sqrt(5 / 4)
    real, control = (runs({("last", flag): scores}).assign(**grid) for flag, scores in (
        (False, [0.3, 0.5, 0.4, 0.6]), (True, [0.1] * 4),
    ))  # fmt: skip
    row = probed(pd.concat([real, control], ignore_index=True))
    assert (row["selectivity_low"], row["selectivity_high"]) == pytest.approx((0.35 - half / 10, 0.35 + half / 10))
    row = probed(coded(real, [200.0, 400.0, 300.0, 500.0]))
    assert (row["code_low"], row["code_high"]) == pytest.approx((350 - 100 * half, 350 + 100 * half))


def test_codes_of_several_data_sets_are_averaged_seed_by_seed() -> None:
    one = runs({("last", False): [0.8, 0.9]})
    frame = pd.concat([one, one.assign(data="e", evaluated="e", store="e")], ignore_index=True)
    row = probed(coded(frame, [100.0, 200.0, 300.0, 600.0]), ("data",))
    # The seeds have means of 200 and 400: their standard error is 100.
    assert (row["code_bits"], row["code_std"]) == pytest.approx((300, 100 * np.sqrt(2)))
    assert row["code_high"] - row["code_bits"] == pytest.approx(100 * stats.t.ppf(0.975, 1))
    assert row["codes"] == 4
