"""Pairs of runs, and groups against a baseline: which runs meet, what their differences come to, what is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fusionkit.cli.tables.summary_table import summary_table
from fusionkit.errors import UsageError
from fusionkit.fit import RunGroups, compare, summarise
from fusionkit.runs.comparison.pairing import Pairs, pair_runs, sides_of
from fusionkit.runs.comparison.rivals import Rivals
from fusionkit.runs.record import flat_record
from fusionkit.runs.tables.comparison_notes import comparison_notes
from fusionkit.runs.tabulate import tabulate
from fusionkit.specs import RunSpec

LAST = [0.50, 0.61, 0.55, 0.58, 0.52]
LINEAR = [0.56, 0.60, 0.62, 0.66, 0.57]
CONCAT = [0.70, 0.71, 0.75, 0.73, 0.70]


def runs(fusion: str, scores: list[float], seeds: list[int] | None = None, **fields: Any) -> pd.DataFrame:
    """One run a score; fields of a spec, or of a record, or ``init_seeds``."""
    seeds = seeds or list(range(len(scores)))
    inits = fields.pop("init_seeds", seeds)
    names = set(RunSpec.__dataclass_fields__)
    rows = []
    for score, seed, init in zip(scores, seeds, inits, strict=True):
        spec: dict[str, Any] = {"store": "s", "task": "tagging", "label": "tags", "fusion": fusion, "head": "tagger"}
        spec |= {"data_seed": seed, "init_seed": init} | {k: v for k, v in fields.items() if k in names}
        record = {
            "status": "finished", "data": "corpus", "evaluated": fields.get("data", "corpus"), "encoder": "minilm",
            "rows": "words", "sides": 1, "metric": "f1",
            "score": score, "validation_score": score, "fusion_parameters": 8, "head_parameters": 100,
            "seconds": 2.0, "seconds_alone": 3.0,
        } | {k: v for k, v in fields.items() if k not in names}  # fmt: skip
        rows.append(flat_record({"spec": RunSpec(**spec).to_dict(), **record}))
    return pd.DataFrame(rows)


def table(*frames: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True)


def row(compared: pd.DataFrame, **values: Any) -> pd.Series[Any]:
    [place] = np.flatnonzero(np.logical_and.reduce([compared[key] == value for key, value in values.items()]))
    return compared.iloc[place]


def differences_of(ours: list[float], theirs: list[float]) -> list[float]:
    return [one - other for one, other in zip(ours, theirs, strict=True)]


def flips(differences: list[float]) -> float:
    sums = [sum(s * d for s, d in zip(p, differences, strict=True)) for p in itertools.product((1, -1), repeat=5)]
    return float(np.mean([abs(total) >= abs(sum(differences)) - 1e-12 for total in sums]))


def test_a_group_is_set_against_the_baseline_pair_by_pair() -> None:
    # Runs end in any order: pairs are found by their seeds.
    frame = table(runs("last", LAST), runs("linear", LINEAR)).sample(frac=1, random_state=1)
    found = row(compare(RunGroups(frame), "last"), fusion="linear")
    differences = differences_of(LINEAR, LAST)
    assert found["difference"] == pytest.approx(np.mean(differences))
    wanted = stats.t.interval(0.95, 4, loc=np.mean(differences), scale=stats.sem(differences))
    assert (found["difference_low"], found["difference_high"]) == pytest.approx(wanted)
    assert found["p"] == found["p_corrected"] == flips(differences) == 4 / 32
    assert found["smallest_p"] == 2 / 32
    assert tuple(found[["wins", "ties", "losses", "pairs", "blocks", "unpaired"]]) == (4, 0, 1, 5, 5, 0)
    assert not found["significant"]
    assert found["baseline"] == "fusion=last"


def test_the_baselines_own_row_is_compared_with_nothing() -> None:
    found = row(compare(RunGroups(table(runs("last", LAST), runs("linear", LINEAR))), "last"), fusion="last")
    assert found["is_baseline"]
    assert found[["difference", "p", "p_corrected", "pairs", "wins"]].isna().all()
    assert found["unpaired"] == 0
    assert found["mean"] == pytest.approx(np.mean(LAST))


def test_p_values_are_corrected_for_all_comparisons_of_the_table() -> None:
    frame = table(runs("last", LAST), runs("linear", LINEAR), runs("concat", CONCAT), runs("attention", LAST))
    p = [flips(differences_of(scores, LAST)) for scores in (LINEAR, CONCAT, LAST)]
    assert p == [4 / 32, 2 / 32, 1.0]
    for correction, wanted in {
        "holm": [2 * p[0], 3 * p[1], 1.0], "bonferroni": [3 * p[0], 3 * p[1], 1.0],
        "fdr": [3 / 2 * p[0], 3 * p[1], 1.0], "none": p,
    }.items():  # fmt: skip
        compared = compare(RunGroups(frame), "last", correction=correction)
        found = compared.set_index("fusion").loc[["linear", "concat", "attention"], "p_corrected"].tolist()
        assert found == pytest.approx(wanted)


def test_equal_scores_are_ties() -> None:
    frame = table(runs("last", LAST), runs("linear", [0.5, *LINEAR[1:]]))
    found = row(compare(RunGroups(frame), "last"), fusion="linear")
    assert tuple(found[["wins", "ties", "losses"]]) == (3, 1, 1)


def test_of_a_perplexity_the_less_wins() -> None:
    frame = table(*(runs(name, scores, metric="perplexity") for name, scores in (("last", LAST), ("linear", LINEAR))))
    found = row(compare(RunGroups(frame), "last"), fusion="linear")
    assert tuple(found[["wins", "ties", "losses"]]) == (1, 0, 4)
    assert found["difference"] == pytest.approx(np.mean(differences_of(LINEAR, LAST)))


def test_each_group_meets_the_baseline_of_its_own_other_columns() -> None:
    frame = table(
        runs("last", LAST, shots=8), runs("last", CONCAT, shots=16),
        runs("linear", LINEAR, shots=8), runs("linear", LINEAR, shots=16),
    )  # fmt: skip
    compared = compare(RunGroups(frame, ["fusion", "shots"]), "last")
    for shots, other in ((8, LAST), (16, CONCAT)):
        wanted = np.mean(differences_of(LINEAR, other))
        assert row(compared, fusion="linear", shots=shots)["difference"] == pytest.approx(wanted)
    pinned = compare(RunGroups(frame, ["fusion", "shots"]), "fusion=last,shots=8")
    assert row(pinned, fusion="last", shots=16)["difference"] == pytest.approx(np.mean(differences_of(CONCAT, LAST)))
    assert pinned["is_baseline"].sum() == 1


def test_pairs_of_one_draw_are_one_trial() -> None:
    rates = (1e-3, 1e-2)
    frame = table(*(runs("last", LAST, lr=lr) for lr in rates), *(runs("linear", LINEAR, lr=lr) for lr in rates))
    found = row(compare(RunGroups(frame, ["fusion"], average=["lr"]), "last"), fusion="linear")
    assert (found["pairs"], found["blocks"], found["wins"]) == (10, 5, 8)
    assert found["p"] == flips(differences_of(LINEAR, LAST))
    apart = compare(RunGroups(frame, ["fusion"]), "last")
    assert apart[["fusion", "lr"]].to_numpy().tolist() == [
        ["last", 1e-3],
        ["last", 1e-2],
        ["linear", 1e-3],
        ["linear", 1e-2],
    ]
    assert apart["pairs"].tolist()[2:] == [5, 5]


def pairs_of(ours: pd.DataFrame, theirs: pd.DataFrame, told: list[str]) -> Pairs:
    one, other = sides_of([ours, theirs])
    return pair_runs(one, other, told)


def test_runs_pair_by_both_seeds() -> None:
    seeds, inits = [0, 0, 1, 1], [0, 1, 0, 1]
    ours = runs("linear", [0.5, 0.6, 0.7, 0.8], seeds, init_seeds=inits)
    theirs = runs("last", [0.1, 0.3, 0.2, 0.8], seeds, init_seeds=inits)
    pairs = pairs_of(ours, theirs, ["fusion"])
    assert pairs.ours.tolist() == [0.5, 0.6, 0.7, 0.8]
    assert pairs.theirs.tolist() == [0.1, 0.3, 0.2, 0.8]
    assert pairs.differences.tolist() == pytest.approx([0.35, 0.25])


def test_other_init_seeds_are_averaged_under_one_draw() -> None:
    ours = runs("linear", [0.5, 0.7, 0.8], [0, 0, 1], init_seeds=[10, 11, 12])
    theirs = runs("last", [0.1, 0.3, 0.2], [0, 0, 1], init_seeds=[20, 21, 22])
    pairs = pairs_of(ours, theirs, ["fusion"])
    assert pairs.ours.tolist() == pytest.approx([0.6, 0.8])
    assert pairs.theirs.tolist() == pytest.approx([0.2, 0.2])
    assert pairs.unpaired == 0


def test_under_one_draw_init_seeds_are_the_trials() -> None:
    frame = table(
        *(runs(name, scores, [0] * 5, init_seeds=range(5)) for name, scores in (("last", LAST), ("b", LINEAR)))
    )
    found = row(compare(RunGroups(frame), "last"), fusion="b")
    assert (found["blocks"], found["p"]) == (5, flips(differences_of(LINEAR, LAST)))


def test_runs_without_a_partner_are_counted_and_left_out() -> None:
    failed = runs("last", [math.nan], [2], status="failed", metric=None)
    frame = table(runs("last", LAST[:2], [0, 1]), failed, runs("linear", [*LINEAR[:3], 0.9], [0, 1, 2, 7]))
    found = row(compare(RunGroups(frame), "last"), fusion="linear")
    assert (found["pairs"], found["unpaired"]) == (2, 2)
    assert found["difference"] == pytest.approx(np.mean(differences_of(LINEAR[:2], LAST[:2])))
    here = table(runs("last", LAST), runs("linear", LINEAR), runs("linear", LINEAR, label="pos"))
    alone = row(compare(RunGroups(here), "last"), label="pos", fusion="linear")
    assert alone["unpaired"] == 5
    assert math.isnan(alone["difference"])


def test_what_else_tells_two_groups_apart_is_said() -> None:
    frame = table(runs("last", LAST, lr=1e-2), runs("linear", LINEAR, lr=1e-3), runs("concat", CONCAT, lr=1e-2))
    compared = compare(RunGroups(frame, ["fusion"]), "last")
    assert row(compared, fusion="linear")["also_differs"] == "lr"
    assert row(compared, fusion="linear")["pairs"] == 5
    assert pd.isna(row(compared, fusion="concat")["also_differs"])


def test_other_tasks_and_data_never_pair() -> None:
    fields: list[dict[str, Any]] = [{"label": "pos"}, {"data": "b"}, {"evaluated": "b"}, {"metric": "accuracy"}]
    for field in fields:
        pairs = pairs_of(runs("linear", LINEAR, **field), runs("last", LAST), ["fusion"])
        assert len(pairs.ours) == 0
        assert pairs.unpaired == 10
    told = pairs_of(runs("last", LINEAR, data="other", evaluated="corpus"), runs("last", LAST), ["data"])
    assert len(told.ours) == 5


def test_data_sets_of_one_name_pair_only_where_data_are_compared() -> None:
    ours, theirs = runs("linear", LINEAR, data_identity="a"), runs("last", LAST, data_identity="b")
    assert len(pairs_of(ours, theirs, ["fusion"]).ours) == 0
    assert len(pairs_of(ours, theirs, ["fusion", "data"]).ours) == 5
    assert len(pairs_of(ours, theirs.drop(columns="data_identity"), ["fusion"]).ours) == 5  # an earlier fusionkit's
    assert len(pairs_of(ours, theirs.assign(data_identity=None), ["fusion"]).ours) == 5
    assert len(pairs_of(ours, theirs.assign(data_identity="a"), ["fusion"]).ours) == 5


def test_runs_that_begin_from_other_runs_pair_all_the_same() -> None:
    ours = table(*(runs("linear", [score], [seed], init_from=f"a{seed}") for seed, score in enumerate(LINEAR)))
    theirs = table(*(runs("last", [score], [seed], init_from=f"b{seed}") for seed, score in enumerate(LAST)))
    assert len(pairs_of(ours, theirs, ["fusion"]).ours) == 5


def test_a_score_on_test_and_one_on_validation_are_no_pair() -> None:
    ours, theirs = runs("linear", LINEAR), runs("last", LAST)
    ours["score"] = math.nan
    assert len(pairs_of(ours, theirs, ["fusion"]).ours) == 0


def test_the_order_of_runs_changes_nothing() -> None:
    frame = table(runs("last", LAST), runs("linear", LINEAR), runs("concat", CONCAT))
    for test, interval in itertools.product(("permutation", "bootstrap"), ("t", "bootstrap")):
        first = compare(RunGroups(frame), "last", test=test, interval=interval)
        again = compare(RunGroups(frame.iloc[::-1]), "last", test=test, interval=interval)
        again = again.iloc[::-1].reset_index(drop=True)
        numbers = ["p", "p_corrected", "difference_low", "difference_high"]
        pd.testing.assert_frame_equal(first[numbers], again[numbers], check_exact=False, rtol=1e-12)


@pytest.mark.parametrize(
    ("baseline", "by", "fixed"),
    [
        ("linear:gamma=no,norm=token", [], "linear:gamma=no,norm=token"),
        ("fusion=linear:gamma=no,norm=token,lr=2e-3", ["fusion", "lr"], "linear:gamma=no,norm=token, lr=0.002"),
        ("0.002", ["lr", "fusion"], "0.002"),
        ("last", ["label", "fusion", "lr", "shots"], "last"),
        ("shots=none", ["shots", "fusion", "lr"], "none"),
    ],
)
def test_a_baseline_is_written_as_values_are(baseline: str, by: list[str], fixed: str) -> None:
    name = "linear:gamma=no,norm=token"
    choices = itertools.product((name, "last"), (2e-3, 5e-4), (None, 8))
    frame = table(*(runs(fusion, LAST, lr=lr, shots=shots) for fusion, lr, shots in choices))
    found = set(compare(RunGroups(frame, by), baseline)["baseline"])
    assert len(found) == 1
    assert found.pop().endswith(f"={fixed}")


@pytest.mark.parametrize(
    ("baseline", "by", "message"),
    [
        ("lsat", [], "unknown fusion of these results 'lsat'"),
        ("fusoin=last", [], "unknown column of the results 'fusoin'"),
        ("lr=0.5", ["fusion", "lr"], "unknown lr of these results '0.5'"),
        ("pool=mean", ["fusion"], "the baseline fixes pool, by which the table is not grouped"),
        ("last", ["fusion", "data_seed"], "one seed shows no significance"),
        ("s", ["store"], "there is nothing to compare with store=s"),
        ("fusion=last,lr=0.1", ["fusion", "lr"], "no run has fusion=last, lr=0.1 together"),
    ],
)
def test_a_baseline_that_cannot_serve_is_refused(baseline: str, by: list[str], message: str) -> None:
    frame = table(runs("last", LAST), runs("linear", LINEAR), runs("linear", LINEAR, lr=0.1))
    with pytest.raises(UsageError) as caught:
        compare(RunGroups(frame, by), baseline)
    assert caught.value.what.startswith(message)
    assert caught.value.remedy


ALL_AGAINST_FULL = "--by method --by fusion --choose-by validation --baseline method=full,fusion=last"


@pytest.mark.parametrize(
    ("baseline", "by", "remedy"),
    [
        ("method=full,fusion=last", [], ALL_AGAINST_FULL),
        ("full", [], ALL_AGAINST_FULL),
        ("method=full,fusion=last", ["method", "fusion"], ALL_AGAINST_FULL),
        ("tagging", ["task"], "--by method --by fusion --choose-by validation --baseline method=frozen,fusion=last"),
    ],
)
def test_where_nothing_can_be_compared_the_remedy_is_what_to_group_by(
    baseline: str, by: list[str], remedy: str
) -> None:
    full = [runs("last", scores, method="full", encoder_lr=lr) for lr, scores in ((1e-5, LAST), (2e-5, CONCAT))]
    frame = table(runs("last", LAST), runs("linear", LINEAR), *full)
    with pytest.raises(UsageError, match="there is nothing to compare with") as caught:
        compare(RunGroups(frame, by), baseline)
    assert str(caught.value.remedy).endswith(f": {remedy}")
    told = remedy.rpartition(" ")[2]
    compared = tabulate(frame, ["method", "fusion"], choose_by="validation", baseline=told)
    other = row(compared, method="frozen", fusion="linear")
    assert other["pairs"] == 5
    wanted = differences_of(LINEAR, CONCAT if "full" in told else LAST)
    assert other["difference"] == pytest.approx(np.mean(wanted))


def test_where_runs_are_grouped_by_all_of_that_already_a_column_is_to_be_found() -> None:
    frame = table(runs("last", LAST), runs("linear", LINEAR, shots=8))
    with pytest.raises(UsageError, match="there is nothing to compare with") as caught:
        compare(RunGroups(frame, ["fusion", "shots"]), "last")
    assert str(caught.value.remedy) == "group by what tells the runs apart: --by fusion --baseline fusion=last"
    with pytest.raises(UsageError, match="there is nothing to compare with") as caught:
        compare(RunGroups(runs("last", LAST), ["fusion"]), "last")
    assert caught.value.remedy == "add --by COLUMN for what tells the others apart"


def test_a_baseline_without_pairs_says_what_never_agrees() -> None:
    with pytest.raises(UsageError, match="no run has a partner") as caught:
        compare(RunGroups(table(runs("last", LAST[:2], [0, 1]), runs("linear", LINEAR[:2], [2, 3]))), "last")
    assert caught.value.received == "data_seed 2, 3 against 0, 1"


def failed(fusion: str, count: int, **fields: Any) -> pd.DataFrame:
    return runs(fusion, [math.nan] * count, status="failed", metric=None, **fields)


@pytest.mark.parametrize(
    ("frames", "name", "received"),
    [
        ([failed("last", 3), runs("linear", LINEAR)], "last", "3 failed runs"),
        ([runs("last", LAST), failed("linear", 1)], "linear", "1 failed run"),
        ([failed("last", 3), failed("linear", 2)], "last", "3 failed runs; so did all of 1 other group"),
        (
            [runs("last", LAST), failed("linear", 2), failed("concat", 5), failed("attention", 1)],
            "linear",
            "2 failed runs; so did all of 2 other groups",
        ),
    ],
)
def test_where_all_runs_of_one_side_failed_that_is_said(frames: list[pd.DataFrame], name: str, received: str) -> None:
    with pytest.raises(UsageError) as caught:
        compare(RunGroups(table(*frames)), "last")
    assert (
        caught.value.what == f"all runs of task=tagging, label=tags, fusion={name} failed: there is nothing to compare"
    )
    assert caught.value.received == received
    assert caught.value.remedy == "try them again with `fusionkit fit --retry-failed`, or fit with a smaller --lr"


def test_where_some_runs_failed_those_that_finished_say_what_never_agrees() -> None:
    frame = table(
        runs("last", LAST[:2], [0, 1]), failed("last", 2, seeds=[2, 3]),
        runs("linear", LINEAR[:2], [2, 3]), failed("concat", 2),
    )  # fmt: skip
    with pytest.raises(UsageError, match="no run has a partner") as caught:
        compare(RunGroups(frame), "last")
    assert caught.value.received == "data_seed 2, 3 against 0, 1"


@pytest.mark.parametrize(("name", "value"), [("test", "wilcox"), ("correction", "hom"), ("interval", "tt")])
def test_an_unknown_method_is_refused(name: str, value: str) -> None:
    groups = RunGroups(table(runs("last", LAST), runs("linear", LINEAR)))
    with pytest.raises(UsageError, match=f"unknown {name} '{value}'"):
        compare(groups, "last", **{name: value})  # type: ignore[arg-type]


def test_of_a_perplexity_the_least_ranks_first_is_worth_its_cost_and_ties_with_none() -> None:
    scores = {
        "concat": [2.0, 2.1, 2.2, 2.1, 2.0], "linear": [3.0, 3.2, 3.1, 3.1, 3.1], "last": [4.1, 4.0, 4.2, 4.1, 4.0],
    }  # fmt: skip
    seconds = {"concat": 1.0, "linear": 2.0, "last": 3.0}  # the best is the cheapest: nothing else is worth more
    frames = [runs(name, own, metric="perplexity", seconds_alone=seconds[name]) for name, own in scores.items()]
    found = tabulate(table(*frames), ["fusion"], pareto="seconds_alone", ranks=True).set_index("fusion")
    assert found["tied"].to_dict() == {"concat": True, "linear": False, "last": False}
    assert found["pareto"].to_dict() == {"concat": True, "linear": False, "last": False}
    assert any(note.endswith("the cheapest group has it without a test") for note in found.attrs["notes"])
    ranks = {name: (int(row["best_rank"]), int(row["worst_rank"])) for name, row in found.iterrows()}
    assert ranks == {"concat": (1, 1), "linear": (2, 2), "last": (3, 3)}


def test_against_a_floor_every_init_seed_of_a_crossed_design_counts() -> None:
    """Differences of 0.2 and 0.4 in one draw, 0.3 and 0.5 in the other: mean squares of 0.01, 0.04 and a rest of 0."""
    heads = runs("last", [0.5, 0.7, 0.6, 0.8], [0, 0, 1, 1], init_seeds=[0, 1, 0, 1])
    frame = table(heads, runs("majority", [0.3, 0.3]))
    for baseline, ours, difference in (("majority", "last", 0.35), ("last", "majority", -0.35)):
        found = row(compare(RunGroups(frame), baseline), fusion=ours)
        assert (found["difference"], found["pairs"]) == (pytest.approx(difference), 2)
        assert found["difference_se_seeds"] == pytest.approx(math.sqrt((0.01 + 0.04) / 4))


def test_of_crossed_draws_and_init_seeds_every_interval_and_test_is_students() -> None:
    seeds: dict[str, Any] = {"seeds": [0, 0, 1, 1, 2, 2], "init_seeds": [0, 1] * 3}
    frame = table(runs("last", [0.5] * 6, **seeds), runs("linear", [0.6, 0.7, 0.6, 0.8, 0.7, 0.9], **seeds))
    student = row(compare(RunGroups(frame), "last", test="t"), fusion="linear")
    assert student["p"] != 2 / 2**3  # what sign flips of three draws would give
    every: list[dict[str, Any]] = [{}, {"test": "bootstrap"}, {"interval": "bootstrap"}]
    for options in every:
        found = row(compare(RunGroups(frame), "last", **options), fusion="linear")
        assert found.equals(student)
    alone = runs("last", LAST), runs("linear", LINEAR)
    drawn, usual = (compare(RunGroups(table(*alone)), "last", interval=each) for each in ("bootstrap", "t"))
    assert row(drawn, fusion="linear")["low"] > row(usual, fusion="linear")["low"]


def test_runs_that_were_stopped_are_counted_below_the_table() -> None:
    stopped = runs("last", LAST[:2], lr=0.1, status="stopped")
    notes = tabulate(table(runs("last", LAST), stopped)).attrs["notes"]
    assert "2 runs stopped early by halving: left out" in notes


def of_languages(*languages: str) -> pd.DataFrame:
    scores = {"last": LAST[:2], "linear": LINEAR[:2]}
    return table(*(runs(name, own, data=each, store=each) for each in languages for name, own in scores.items()))


def test_where_data_sets_are_the_blocks_no_note_speaks_of_seeds() -> None:
    options: dict[str, Any] = {"average": ["data"], "baseline": "last", "block": "data"}
    compared = tabulate(of_languages("de", "fr"), ["fusion"], **options)
    told = "\n".join([*compared.attrs["notes"], *comparison_notes(compared)])
    assert "intervals of means generalise to other seeds" in told
    assert "p by sign-flip permutation test over data sets" in told
    # 2 / 2² is 0.5; 2 / 2⁵ is 0.06 and 2 / 2⁶ is 0.03.
    assert "p is 0.5 at the least with 2 data sets; 6 data sets could" in told
    for contradiction in ("intervals and tests generalise", "seeds could", "training draw"):
        assert contradiction not in told
    assert "intervals over seeds, Δ and p over data sets" in str(summary_table(compared).title)
    drawn = tabulate(of_languages("de", "fr"), ["fusion"], test="bootstrap", **options)
    assert any(
        note.startswith("with 2 data sets the bootstrap's p-values are too small") for note in comparison_notes(drawn)
    )
    with pytest.raises(UsageError, match="one data set shows no significance") as caught:
        tabulate(of_languages("de"), ["fusion"], **options)
    assert "seeds" not in str(caught.value.remedy)


def test_unpaired_runs_are_named_where_nothing_is_tested() -> None:
    frame = table(runs("last", LAST[:3]), runs("majority", [0.3, 0.3]))
    notes = comparison_notes(compare(RunGroups(frame), "last"))
    assert "runs without a partner, left out of the differences: 1 (majority)" in notes


def test_notes_name_the_first_groups_and_count_the_others() -> None:
    several = ("concat", "attention", "layer:1", "layer:2", "layer:3", "layer:4")
    frame = table(runs("last", LAST[:2]), runs("linear", LINEAR[:2]), *(runs(name, CONCAT[:1]) for name in several))
    notes = comparison_notes(compare(RunGroups(frame, ["fusion"]), "last"))
    assert "one trial, nothing to test: concat, attention, layer:1, layer:2 and 2 others" in notes
    alone = "1 (concat), 1 (attention), 1 (layer:1), 1 (layer:2) and 2 others"
    assert f"runs without a partner, left out of the differences: {alone}" in notes


def test_data_sets_of_one_name_do_not_compete_and_stores_of_one_data_set_do() -> None:
    stores, scores = {"float16": "a", "int8": "a", "other": "b"}, {"last": LAST, "linear": LINEAR}
    frame = table(*(
        runs(name, own, store=store, data_identity=data)
        for store, data in stores.items() for name, own in scores.items()
    ))  # fmt: skip
    named = frame.assign(data=frame["store"])

    def contests(frame: pd.DataFrame, by: list[str], average: tuple[str, ...] = ()) -> list[int]:
        groups = RunGroups(frame, by, average=average)
        return [len(places) for places in Rivals(summarise(groups), groups).contests]

    assert contests(frame, ["store", "fusion"]) == [4, 2]
    assert contests(frame.drop(columns="data_identity"), ["store", "fusion"]) == [6]
    earlier = frame.assign(data_identity=frame["data_identity"].where(frame["data_identity"] != "b"))
    assert contests(earlier, ["store", "fusion"]) == [6]  # records of an earlier version have none
    assert contests(named[~((named["data"] == "other") & (named["fusion"] == "last"))], ["fusion"], ("data",)) == [2]


def test_each_error_over_seeds_has_the_shares_of_its_mean() -> None:
    """Draws of 0.6, 0.7 and 0.8, of which the first has three runs: a mean is over runs, a difference over draws."""
    seeds, inits = [0, 0, 0, 1, 2], [0, 3, 4, 1, 2]
    last = runs("last", [0.5] * 5, seeds, init_seeds=inits)
    here = table(last, runs("linear", [0.6, 0.6, 0.6, 0.7, 0.8], seeds, init_seeds=inits))
    found = row(compare(RunGroups(here), "last"), fusion="linear")
    assert (found["mean"], found["difference"]) == (pytest.approx(0.66), pytest.approx(0.2))
    assert found["se_seeds"] == pytest.approx(0.1 * math.sqrt(11) / 5)
    assert found["difference_se_seeds"] == pytest.approx(0.1 / math.sqrt(3))
    # Beside it a data set with a run a draw: three of six blocks each.
    scores = {"last": [0.5] * 3, "linear": [0.6, 0.7, 0.8]}
    there = table(*(runs(name, own, data="b", store="b") for name, own in scores.items()))
    both = compare(RunGroups(table(here, there), ["fusion"], average=["data"]), "last")
    assert row(both, fusion="linear")["difference_se_seeds"] == pytest.approx(0.1 / math.sqrt(6))


def test_a_test_that_contradicts_the_means_separates_nothing() -> None:
    """linear gains 0.03 in each draw that both have; with two easy draws of its own, last has the better mean."""
    frame = table(runs("last", [0.5, 0.51, 0.52, 0.9, 0.9]), runs("linear", [0.53, 0.54, 0.551]))
    found = tabulate(frame, ["fusion"], ranks=True).set_index("fusion")
    assert found["tied"].to_dict() == {"last": True, "linear": True}
    ranks = {name: (int(each["best_rank"]), int(each["worst_rank"])) for name, each in found.iterrows()}
    assert ranks == {"last": (1, 2), "linear": (1, 2)}


def test_with_one_draw_a_floor_is_set_against_each_init_seed() -> None:
    draw = {"seeds": [0] * 5, "init_seeds": [*range(5)]}
    frame = table(runs("majority", [0.3], seeds=[0]), runs("last", LAST, **draw), runs("linear", LINEAR, **draw))
    compared = compare(RunGroups(frame), "majority")
    found = row(compared, fusion="last")
    assert tuple(found[["pairs", "blocks", "unpaired"]]) == (5, 5, 0)
    assert found["difference"] == pytest.approx(np.mean(LAST) - 0.3)
    assert found["difference_se_seeds"] == pytest.approx(stats.sem(LAST))
    assert found["p"] == 2 / 32
    below = row(compare(RunGroups(frame), "last"), fusion="majority")
    assert tuple(below[["difference", "blocks", "unpaired"]]) == (pytest.approx(0.3 - np.mean(LAST)), 5, 0)
