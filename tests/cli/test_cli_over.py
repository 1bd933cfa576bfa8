"""``fusionkit results --over``: what intervals and p-values generalise to, from the answers that runs keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec
from fusionkit.statistics.kept_answers import CLASS, KeptAnswers, RunAnswers

Command = Callable[..., Any]
EXAMPLES = 500
Keep = Callable[..., Path]


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Writes a folder of runs from right answers ``[runs, examples]`` by fusion; ``seeds`` are draw and weights."""

    def write(
        right: dict[str, np.ndarray],
        seeds: Sequence[tuple[int, int]] | None = None,
        data: str = "corpus",
        answers: bool = True,
        seconds: Mapping[str, float] | None = None,
    ) -> Path:
        runs = RunsFolder(tmp_path / "runs")
        for fusion, found in right.items():
            for (draw, init), hits in zip(seeds or [(k, k) for k in range(len(found))], found, strict=True):
                spec = RunSpec(
                    store=data, task="classification", label="label", fusion=fusion, head="classifier", pool="mean",
                    data_seed=draw, init_seed=init,
                )  # fmt: skip
                scores = {"accuracy": float(hits.mean())}
                record = {
                    "spec": spec.to_dict(), "status": "finished", "data": data, "evaluated": data, "encoder": "minilm",
                    "rows": "mean", "sides": 1, "metric": "accuracy", "score": scores["accuracy"],
                    "validation_score": 0.5, "scores": {"validation": scores, "test": scores},
                    "fusion_parameters": 8, "head_parameters": 100, "seconds_alone": (seconds or {}).get(fusion),
                }  # fmt: skip
                told = np.arange(len(hits), dtype=np.uint8) % 2
                kept = KeptAnswers(CLASS, {"told": told, "found": np.where(hits, told, 1 - told)}, ("a", "b"))
                runs.write(spec, record, {}, answers={"": RunAnswers({"": kept})} if answers else None)
        return runs.path

    return write


def like_trec6(seeds: int = 6) -> dict[str, np.ndarray]:
    """Two fusions whose seeds agree, and who differ in seven of 500 questions."""
    rng = np.random.default_rng(3)
    last = np.ones((seeds, EXAMPLES), dtype=bool)
    last[:, :45] = False
    attention = last.copy()
    attention[:, 20:41], attention[:, 60:74] = True, False
    for table in (last, attention):
        for row in table:
            row[rng.integers(100, EXAMPLES, 2)] = False
    return {"last": last, "attention": attention}


def one(done: Any, fusion: str) -> dict[str, Any]:
    [row] = [row for row in done.json if row["fusion"] == fusion]
    return dict(row)


def test_seeds_that_agree_are_no_new_test_examples(fusionkit: Command, keep: Keep) -> None:
    runs = keep(like_trec6())
    table = fusionkit("results", runs, "--baseline", "last")
    told = " ".join(table.out.split())
    assert "intervals and tests generalise to other seeds and other test examples; 500 test examples; standard" in told
    assert "p by two-way test over seeds and test examples" in told
    found = {
        over: one(fusionkit("results", runs, "--baseline", "last", "--over", over, "--json"), "attention")
        for over in ("seeds", "examples", "both")
    }
    default = one(fusionkit("results", runs, "--baseline", "last", "--json"), "attention")
    assert default == found["both"]
    assert found["seeds"]["difference_low"] > 0
    assert found["seeds"]["p"] == 2 / 2**6
    assert found["both"]["difference_low"] < 0 < found["both"]["difference_high"]
    assert found["both"]["p"] > 0.05
    assert found["examples"]["p"] > 0.05
    rights = like_trec6()
    table_of = rights["attention"].astype(float) - rights["last"]
    assert default["difference_se_seeds"] == pytest.approx(stats.sem(table_of.mean(1)))
    assert default["difference_se_examples"] == pytest.approx(stats.sem(table_of.mean(0)))
    assert default["test_examples"] == EXAMPLES
    assert default["se_examples"] == pytest.approx(stats.sem(rights["attention"].mean(0)))
    # Best, and not told from it.
    assert {row["fusion"]: row["tied"] for row in fusionkit("results", runs, "--json").json} == {
        "last": True,
        "attention": True,
    }


def test_one_seed_beside_several_is_tested_over_the_examples_that_it_answered(fusionkit: Command, keep: Keep) -> None:
    """Without a test the one seed with the best score would stand as the winner."""
    last, attention = np.ones((3, EXAMPLES), dtype=bool), np.ones((1, EXAMPLES), dtype=bool)
    last[:, :100], last[1, 100:104], attention[:, 1:100] = False, False, False
    linear = attention.copy()
    linear[:, :200] = False
    done = fusionkit("results", keep({"last": last, "attention": attention, "linear": linear}), "--json").json
    assert {row["fusion"]: row["tied"] for row in done} == {"last": True, "attention": True, "linear": False}


def test_the_best_of_what_cannot_be_tested_has_no_mark(fusionkit: Command, keep: Keep) -> None:
    right = {name: rows[:1] for name, rows in like_trec6().items()}
    runs = keep(right, answers=False)
    assert {row["tied"] for row in fusionkit("results", runs, "--json").json} == {None}


def test_a_group_is_worth_its_cost_where_it_is_better_than_all_that_costs_less(fusionkit: Command, keep: Keep) -> None:
    last, linear, attention, concat = (np.ones((3, EXAMPLES), dtype=bool) for _ in range(4))
    last[:, :100], linear[:, :60], attention[:, 2:60], concat[:, :20] = False, False, False, False
    dear = last.copy()
    rights = {"last": last, "linear": linear, "attention": attention, "concat": concat, "dwatt": dear, "majority": last}
    seconds = {"last": 1.0, "linear": 2.0, "attention": 3.0, "concat": 4.0, "dwatt": 5.0, "majority": 0.0}
    runs = keep(rights, seconds=seconds)
    done = fusionkit("results", runs, "--pareto", "seconds_alone")
    assert "◆: better than every group with less seconds_alone, each by a paired test (p at most 0.05)" in done.out
    rows = fusionkit("results", runs, "--pareto", "seconds_alone", "--json").json
    marks = {row["fusion"]: row["pareto"] for row in rows}
    # attention is 2 questions better than linear, which costs less: no difference that stands.
    assert marks == {
        "last": True, "linear": True, "attention": False, "concat": True, "dwatt": False, "majority": None,
    }  # fmt: skip
    assert {row["fusion"]: row["pareto_cost"] for row in rows if row["fusion"] != "majority"} == {
        name: cost for name, cost in seconds.items() if name != "majority"
    }
    lines = [line for line in done.out.splitlines() if "◆" in line and "%" not in line and "better" not in line]
    assert [line.split()[0] for line in lines] == ["last", "linear", "concat"]
    assert "$^\\blacklozenge$" in fusionkit("results", runs, "--pareto", "seconds_alone", "--format", "latex").out
    # attention and linear are not told apart, nor are last and what is its copy.
    ranks = fusionkit("results", runs, "--ranks", "--json").json
    assert {row["fusion"]: (row["best_rank"], row["worst_rank"]) for row in ranks if row["fusion"] != "majority"} == {
        "last": (4, 6), "linear": (2, 3), "attention": (2, 3), "concat": (1, 1), "dwatt": (4, 6),
    }  # fmt: skip
    shown = [line.split() for line in fusionkit("results", runs, "--ranks").out.splitlines()]
    assert {line[0]: line[-6] for line in shown if line and line[0] in ("concat", "linear")} == {
        "concat": "1",
        "linear": "2–3",
    }
    # All have as many weights: who is better has the mark, and who is not told from the best.
    equal = fusionkit("results", runs, "--pareto", "trained_parameters", "--json").json
    assert {row["fusion"] for row in equal if row["pareto"]} == {"concat"}
    refused = fusionkit("results", runs, "--pareto", "kept_bytes")
    assert refused.code == 2
    assert "no run tells its kept_bytes" in refused.err


def test_one_run_a_side_is_compared_over_examples_alone(fusionkit: Command, keep: Keep) -> None:
    rights = like_trec6(1)
    done = fusionkit("results", keep(rights), "--baseline", "last", "--json")
    found = one(done, "attention")
    ours, theirs = rights["attention"][0], rights["last"][0]
    wins, losses = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    assert found["p"] == pytest.approx(stats.binomtest(wins, wins + losses).pvalue)
    assert found["difference_low"] < found["difference"] < found["difference_high"]
    refused = fusionkit("results", keep(rights), "--baseline", "last", "--over", "both")
    assert refused.code == 2
    assert "compare over test examples with --over examples" in refused.err


def test_crossed_draws_and_weights_are_told_apart(fusionkit: Command, keep: Keep) -> None:
    rng = np.random.default_rng(0)
    grid = [(draw, init) for draw in range(5) for init in range(4)]
    share = 0.5 + 0.08 * rng.normal(size=5).repeat(4)
    right = rng.random((20, EXAMPLES)) < share[:, None]
    runs = keep({"last": right, "linear": right | (rng.random((20, EXAMPLES)) < 0.1)}, grid)
    done = fusionkit("results", runs)
    assert "draws and init seeds are crossed; standard deviations of draws" in " ".join(done.out.split())
    row = one(fusionkit("results", runs, "--over", "seeds", "--json"), "last")
    assert row["std_draws"] > 0.03 > row["std_inits"]
    scores = right.mean(1).reshape(5, 4)
    half = stats.t.ppf(0.975, 4) * stats.sem(scores.mean(1))
    assert row["high"] - row["mean"] == pytest.approx(half, rel=0.25)  # of five draws, not of twenty runs
    assert row["high"] - row["mean"] > 1.5 * stats.t.ppf(0.975, 19) * stats.sem(scores.ravel())


def test_a_data_set_can_be_the_block(fusionkit: Command, keep: Keep) -> None:
    rng = np.random.default_rng(1)
    for number, data in enumerate(("de", "en", "fr", "it")):
        last = rng.random((3, EXAMPLES)) < 0.6
        keep({"last": last, "linear": last | (rng.random((3, EXAMPLES)) < 0.05 * (1 + number))}, data=data)
    runs = keep({})
    every = ("results", runs, "--by", "fusion", "--average", "data", "--baseline", "last")
    on_these = one(fusionkit(*every, "--json"), "linear")
    of_others = fusionkit(*every, "--block", "data")
    assert "each data set is one difference: intervals and p-values generalise to other data sets" in of_others.out
    row = one(fusionkit(*every, "--block", "data", "--json"), "linear")
    assert (row["blocks"], row["p"]) == (4, 2 / 2**4)
    assert row["difference"] == pytest.approx(on_these["difference"])
    assert row["difference_high"] - row["difference_low"] > 2 * (
        on_these["difference_high"] - on_these["difference_low"]
    )
    assert on_these["test_examples"] == 4 * EXAMPLES
    assert on_these["p"] < 0.001


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--over", "both", "--test", "permutation"), "--test permutation can only compare over seeds"),
        (("--over", "examples", "--interval", "bootstrap"), "--interval bootstrap can only compare over seeds"),
        (("--over", "both", "--block", "data"), "with --block data each data set counts as one difference"),
        (("--simultaneous", "--interval", "bootstrap"), "--simultaneous is for --interval t"),
    ],
)
def test_choices_that_do_not_go_together_are_refused(
    options: tuple[str, ...], what: str, fusionkit: Command, keep: Keep
) -> None:
    done = fusionkit("results", keep(like_trec6()), "--baseline", "last", *options)
    assert done.code == 2
    assert what in done.err


def test_simultaneous_intervals_are_wider(fusionkit: Command, keep: Keep) -> None:
    rights = like_trec6() | {
        "linear": like_trec6()["attention"] ^ (np.random.default_rng(5).random((6, EXAMPLES)) < 0.01)
    }
    runs = keep(rights)
    alone, together = (
        one(fusionkit("results", runs, "--baseline", "last", "--json", *more), "attention")
        for more in ((), ("--simultaneous",))
    )
    assert together["difference_high"] > alone["difference_high"]
    assert together["p"] == alone["p"]


def test_without_answers_seeds_are_what_is_left_and_that_is_said(fusionkit: Command, keep: Keep) -> None:
    runs = keep(like_trec6(), answers=False)
    done = fusionkit("results", runs, "--baseline", "last")
    assert "no answers are kept of 12 runs, so nothing is said of other test examples" in done.out
    refused = fusionkit("results", runs, "--baseline", "last", "--over", "both")
    assert refused.code == 2
    assert "--over both needs each run's answers on test" in refused.err
    # Answers that are not those of the record.
    runs = keep(like_trec6())
    [first, *_] = sorted(runs.glob("*/answers.safetensors"))
    other = next(path for path in runs.glob("*/answers.safetensors") if path.read_bytes() != first.read_bytes())
    other.write_bytes(first.read_bytes())
    spoilt = fusionkit("results", runs)
    assert spoilt.code == 1
    assert "are not those that were scored" in spoilt.err
    first.write_bytes(b"torn")
    assert "is damaged" in fusionkit("results", runs).err


def test_of_scores_on_validation_no_answers_are_promised(fusionkit: Command, keep: Keep) -> None:
    done = fusionkit("results", keep(like_trec6()), "--split", "validation", "--over", "both")
    assert done.code == 2
    assert "remedy:   compare with --over seeds" in done.err
