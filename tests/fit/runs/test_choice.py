"""What validation chooses of several rates, epochs and layers, and that tables and comparisons follow it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fusionkit.errors import UsageError
from fusionkit.fit import RunGroups, compare, summarise
from fusionkit.runs.choice import best_run, choose, chosen_by
from fusionkit.runs.record import flat_record, flat_tests
from fusionkit.runs.tables.paper_tables import latex, markdown
from fusionkit.specs import RunSpec


def runs(fusion: str, validation: list[float], test: list[float] | None = None, **fields: Any) -> pd.DataFrame:
    """One run a seed; fields of a spec, or of a record."""
    names, rows = set(RunSpec.__dataclass_fields__), list[dict[str, Any]]()
    for seed, value in enumerate(validation):
        spec: dict[str, Any] = {"store": "s", "task": "tagging", "label": "tags", "fusion": fusion, "head": "tagger"}
        spec |= {"data_seed": seed, "init_seed": seed} | {k: v for k, v in fields.items() if k in names}
        record = {
            "status": "finished", "data": "corpus", "evaluated": fields.get("data", "corpus"), "encoder": "minilm",
            "rows": "words", "sides": 1, "metric": "f1",
            "score": (test or validation)[seed], "validation_score": value, "fusion_parameters": 8,
            "head_parameters": 100, "seconds": 2.0, "seconds_alone": 3.0,
        } | {k: v for k, v in fields.items() if k not in names}  # fmt: skip
        rows.append(flat_record({"spec": RunSpec(**spec).to_dict(), **record}))
    return pd.DataFrame(rows)


def grid() -> pd.DataFrame:
    """Validation and test disagree; of ``last`` the largest rate is best, of ``linear`` the middle one."""
    return pd.concat([
        runs("last", [0.5, 0.5], [0.9, 0.9], lr=1e-3), runs("last", [0.6, 0.5], [0.2, 0.2], lr=2e-3),
        runs("last", [0.7, 0.6], [0.3, 0.3], lr=4e-3), runs("linear", [0.1, 0.95], [0.4, 0.4], lr=1e-3),
        runs("linear", [0.8, 0.7], [0.5, 0.6], lr=2e-3), runs("linear", [0.6, 0.7], [0.7, 0.7], lr=4e-3),
    ], ignore_index=True)  # fmt: skip


def test_the_best_mean_of_validation_counts_group_by_group() -> None:
    found = choose(grid())
    assert found.frame.groupby("fusion", sort=False)["lr"].unique().map(list).to_dict() == {
        "last": [4e-3], "linear": [2e-3],
    }  # fmt: skip
    assert found.columns == ("lr",)
    assert found.notes == [
        "chosen by validation: lr of 0.001, 0.002, 0.004",
        "lr 0.004 is the largest that was tried, try larger ones: last",
    ]


def test_one_setting_serves_all_tasks_of_a_run_and_their_mean_decides() -> None:
    scores = {1e-3: (0.9, 0.1), 2e-3: (0.8, 0.8), 4e-3: (0.1, 0.9)}  # of sst2 and mrpc
    found = list[pd.DataFrame]()
    for lr, (sst2, mrpc) in scores.items():
        run = runs("last", [(sst2 + mrpc) / 2], lr=lr).assign(task_stores="sst2,mrpc", digest=f"{lr}")
        found += [run.assign(task="sst2", metric="sst2_accuracy", validation_score=sst2)]
        found += [run.assign(task="mrpc", metric="mrpc_accuracy", validation_score=mrpc), run.assign(task="mean")]
    chosen = choose(pd.concat(found, ignore_index=True))
    assert list(chosen.frame[["task", "lr"]].itertuples(index=False, name=None)) == [
        ("sst2", 2e-3), ("mrpc", 2e-3), ("mean", 2e-3),
    ]  # fmt: skip
    assert chosen.notes == ["chosen by validation: lr of 0.001, 0.002, 0.004"]


def of_tasks(
    sst2: float, mrpc: float, metric: str | None, seed: int = 0, *, failed: bool = False, **fields: Any
) -> list[dict[str, Any]]:
    """The rows of a run of two tasks over stores of their own, with its accuracies."""
    own = {"head": "classifier+classifier", **fields}
    spec = RunSpec(
        store="a", task_stores="a,b", task="sst2=classification,mrpc=classification", label="label,label",
        fusion="last", data_seed=seed, init_seed=seed, **own,
    )  # fmt: skip
    scores = {"mean": (sst2 + mrpc) / 2, "sst2_accuracy": sst2, "mrpc_accuracy": mrpc}
    told: dict[str, Any] = {"status": "finished", "metric": "mean", "score": scores["mean"]}
    told |= {"validation_score": scores["mean"], "scores": {"validation": scores, "test": scores}}
    told = {"status": "failed"} if failed else told
    return flat_tests({"spec": spec.to_dict(), "evaluated": "sst2 + mrpc", "others": {"mrpc": {}}, **told}, metric)


@pytest.mark.parametrize(("metric", "tasks"), [(None, ["sst2", "mrpc", "mean"]), ("accuracy", ["sst2", "mrpc"])])
def test_one_setting_serves_all_tasks_whatever_score_is_shown(metric: str | None, tasks: list[str]) -> None:
    scores = {1e-3: (0.9, 0.1), 2e-3: (0.8, 0.8), 4e-3: (0.1, 0.9)}  # of sst2 and mrpc
    rows = [row for lr, each in scores.items() for row in of_tasks(*each, metric, lr=lr)]
    chosen = chosen_by("validation", pd.DataFrame(rows), ["fusion"]).frame
    assert chosen[["task", "lr"]].to_numpy().tolist() == [[task, 2e-3] for task in tasks]


@pytest.mark.parametrize("metric", [None, "accuracy"])
def test_other_heads_of_several_tasks_are_other_settings(metric: str | None) -> None:
    rates = {"classifier": {1e-3: 0.8, 2e-3: 0.5}, "linear-classifier": {1e-3: 0.4, 2e-3: 0.6}}
    rows = [
        row
        for head, scores in rates.items()
        for lr, score in scores.items()
        for row in of_tasks(score, score, metric, lr=lr, head=f"{head}+{head}")
    ]
    frame = choose(pd.DataFrame(rows)).frame
    assert {(row["head"].split("+")[0], row["lr"]) for _, row in frame.iterrows()} == {
        ("classifier", 1e-3), ("linear-classifier", 2e-3)
    }  # fmt: skip


@pytest.mark.parametrize("metric", [None, "accuracy"])
def test_a_failed_run_of_several_tasks_counts_beside_their_mean(metric: str | None) -> None:
    rows = [row for seed in (0, 1) for row in of_tasks(0.9, 0.9, metric, seed)]
    frame = pd.DataFrame([*rows, *of_tasks(0, 0, metric, 2, failed=True)])
    table = summarise(RunGroups(frame, ["fusion", "task"]))
    assert list(table)[:3] == ["fusion", "task", "metric"]
    assert table.set_index("task")["failed"].to_dict() == dict.fromkeys(frame["task"], 0) | {"mean": 1}
    # Without a failed run the other rate wins.
    other = [row for seed in (0, 1) for row in of_tasks(0.5, 0.5, metric, seed, lr=1e-3)]
    assert set(choose(pd.concat([frame, pd.DataFrame(other)], ignore_index=True)).frame["lr"]) == {1e-3}


def test_equal_means_are_a_tie_in_whatever_order_the_runs_ended() -> None:
    """0.3 + 0.2 + 0.1 and 0.1 + 0.2 + 0.3 are not the same float: the first of two equal settings counts."""
    one, other = [0.3, 0.2, 0.1], [0.1, 0.2, 0.3]
    assert np.mean(one) != np.mean(other)
    for first, second in ((one, other), (other, one)):
        frame = pd.concat([runs("last", first, lr=1e-3), runs("last", second, lr=2e-3)], ignore_index=True)
        for each in (frame, frame[::-1]):
            assert set(choose(each).frame["lr"]) == {1e-3}


def test_of_equal_seeds_the_first_is_the_best_run() -> None:
    frame = runs("last", [0.4, 0.6, 0.6])
    wanted = frame["digest"][1]
    assert [best_run(each) for each in (frame, frame[::-1])] == [wanted, wanted]


def test_a_group_is_all_that_the_tuned_options_and_seeds_leave() -> None:
    other = grid().assign(shots=8)
    better = other["lr"] == 1e-3
    other.loc[better, "validation_score"] = 0.99
    found = choose(pd.concat([grid(), other], ignore_index=True)).frame
    assert set(found[found["shots"].isna()]["lr"]) == {4e-3, 2e-3}
    assert set(found[found["shots"] == 8]["lr"]) == {1e-3}


@pytest.mark.parametrize(("tuned", "best"), [("epochs", 10), ("fusion_layers", "0,1")])
def test_epochs_and_layers_are_chosen_too(tuned: str, best: object) -> None:
    other: dict[str, Any] = {tuned: 5 if tuned == "epochs" else "1"}
    given: dict[str, Any] = {tuned: best}
    frame = pd.concat([runs("last", [0.5], **other), runs("last", [0.6], **given)])
    found = choose(frame)
    assert (found.columns, found.frame[tuned].tolist()) == ((tuned,), [best])
    assert any("try larger ones" in note for note in found.notes) == (tuned == "epochs")


def test_a_rate_that_only_some_methods_have_is_told_without_the_others() -> None:
    trained = [runs("last", [0.5], method="full", encoder_lr=rate) for rate in (1e-4, 1e-5)]
    assert (
        choose(pd.concat([runs("last", [0.6]), *trained])).notes[0]
        == "chosen by validation: encoder_lr of 1e-05, 0.0001"
    )


def test_groups_with_one_rate_are_named_where_others_had_several() -> None:
    frozen = pd.concat([runs("last", [0.5], lr=rate) for rate in (1e-3, 2e-3)])
    full, bitfit = (runs("last", [0.6], method=name, encoder_lr=1e-4) for name in ("full", "bitfit"))
    majority = runs("majority", [0.3])
    several = choose(pd.concat([frozen, full, bitfit, majority]))
    assert several.notes[1:] == [
        "lr 0.001 is the least that was tried, try smaller ones: frozen last",
        "one encoder_lr was tried, other groups had several: full last, bitfit last",
    ]
    wide = runs("last", [0.5], method="full", encoder_lr=1e-5)
    assert choose(pd.concat([frozen[:1], wide, full, bitfit])).notes[1:] == [
        "encoder_lr 0.0001 is the largest that was tried, try larger ones: full last",
        "one lr was tried, other groups had several: frozen last",
        "one encoder_lr was tried, other groups had several: bitfit last",
    ]
    # A table with a row for each lr chooses none of them; where no group had several rates, nothing is said.
    shown = chosen_by("validation", pd.concat([frozen, wide, full]), ["lr"])
    assert [note.split(" was ")[0] for note in shown.notes[1:]] == ["encoder_lr 0.0001 is the largest that"]
    assert len(choose(pd.concat([frozen[:1], runs("last", [0.4], lr=1e-3, epochs=5), full])).notes) == 2


def test_options_that_a_table_shows_are_not_chosen() -> None:
    frame = pd.concat([runs("last", [0.5], epochs=5), runs("last", [0.6]), runs("last", [0.4], lr=1e-3)])
    found = chosen_by("validation", frame, ["epochs", "fusion"])
    assert found.columns == ("lr",)
    assert found.frame["validation_score"].tolist() == [0.5, 0.6]


def test_of_a_loss_the_least_counts() -> None:
    frame = pd.concat([runs("last", [9.0], lr=1e-3, metric="perplexity"), runs("last", [8.0], metric="perplexity")])
    assert choose(frame).frame["validation_score"].tolist() == [8.0]


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_a_setting_that_not_all_seeds_have_finished_loses(status: str) -> None:
    frame = pd.concat([runs("last", [0.5, 0.5], lr=1e-3), runs("last", [0.9, 0.9])], ignore_index=True)
    frame.loc[3, "status"] = status
    frame.loc[3, "validation_score"] = np.nan
    found = choose(frame)
    assert found.frame["lr"].tolist() == [1e-3, 1e-3]
    frame.loc[1, "status"] = status
    assert choose(frame).frame["lr"].tolist() == [RunSpec.__dataclass_fields__["lr"].default]
    frame["status"] = "failed"
    assert len(choose(frame).frame) == 4


def test_seeds_that_are_missing_are_told() -> None:
    frame = pd.concat([runs("last", [0.9], lr=1e-3), runs("last", [0.5, 0.5])], ignore_index=True)
    found = choose(frame)
    assert found.frame["lr"].tolist() == [RunSpec.__dataclass_fields__["lr"].default] * 2
    assert not any("every seed" in note for note in found.notes)
    # Neither has both seeds now: the better one counts, and it is said.
    frame.loc[2, "status"] = "failed"
    lacking = choose(frame)
    assert lacking.frame["lr"].tolist() == [1e-3]
    assert lacking.notes[-1].startswith("no setting has finished with every seed: last")


def test_an_option_that_each_data_set_has_its_own_of_is_no_choice() -> None:
    frame = pd.concat([runs("last", [0.5], data="a", epochs=5), runs("last", [0.5], data="b", epochs=9)])
    found = choose(frame)
    assert (len(found.frame), found.columns, found.notes) == (2, (), [])


def test_tables_show_what_was_chosen_and_compare_across_it() -> None:
    found = choose(grid())
    groups = RunGroups(found.frame, chosen=found.columns)
    summary = summarise(groups)
    assert summary[["fusion", "lr", "mean"]].to_numpy().tolist() == [["last", 4e-3, 0.3], ["linear", 2e-3, 0.55]]
    compared = compare(groups, "last")
    assert compared["difference"].tolist()[1] == pytest.approx(0.25)
    assert compared["pairs"].tolist()[1] == 2
    assert compared["also_differs"].tolist()[1] == "lr"
    both = pd.concat([found.frame, found.frame.assign(data="other")])
    averaged = compare(RunGroups(both, ["fusion"], found.columns, ["data"]), "last")
    assert averaged["pairs"].tolist()[1] == 4
    across = compare(RunGroups(found.frame, ["data", "fusion"], found.columns), "last")
    assert markdown(across, found.notes, "fusion").splitlines()[:3] == [
        "| data | scored on | metric | last | linear |",
        "| --- | --- | --- | --- | --- |",
        "| corpus | test | f1 | 30.0 ± 0.0 | 55.0 ± 7.1 |",
    ]
    assert "| last | 0.004 | test | f1 |" in markdown(across)
    assert "corpus & linear & 0.002 &" in latex(across)


def test_what_differs_between_groups_alone_is_not_chosen() -> None:
    frame = pd.concat([runs("last", [0.5], epochs=5), runs("last", [0.6], epochs=10, label="pos")])
    assert (choose(frame).columns, len(choose(frame).frame)) == ((), 2)


def test_of_one_setting_nothing_is_chosen() -> None:
    frame = runs("last", [0.5, 0.6])
    found = choose(frame)
    assert found.frame is frame
    assert (found.columns, found.notes) == ((), [])


def test_runs_that_were_stopped_are_in_no_group() -> None:
    frame = pd.concat([runs("last", [0.5]), runs("last", [0.4], lr=1e-3, status="stopped", score=None)])
    [row] = summarise(RunGroups(frame)).to_dict(orient="records")
    assert (row["runs"], row["failed"], row["mean"]) == (1, 0, 0.5)
    assert summarise(RunGroups(frame[frame["status"] == "stopped"])).empty  # as while halving runs


def test_the_run_to_export_is_the_best_seed_of_the_best_setting() -> None:
    frame = grid()
    [best] = frame[(frame["fusion"] == "linear") & (frame["lr"] == 2e-3) & (frame["init_seed"] == 0)]["digest"]
    assert best_run(frame) == best  # not the one of 0.95, whose setting has a mean of 0.525
    with pytest.raises(UsageError, match="these runs learned 2 tasks"):
        best_run(pd.concat([frame, runs("last", [0.9], label="pos")]))
    with pytest.raises(UsageError, match="no run has finished"):
        best_run(runs("last", [0.5], status="failed"))


def test_sweeps_that_a_table_tells_apart_are_not_chosen_among() -> None:
    frame = pd.concat(
        [runs("last", [0.5], lr=1e-3).assign(sweep="low"), runs("last", [0.6], lr=2e-3).assign(sweep="high")]
    )
    assert list(chosen_by("validation", frame, ["fusion", "sweep"]).frame["sweep"]) == ["low", "high"]
    assert list(chosen_by("validation", frame, ["fusion"]).frame["sweep"]) == ["high"]
    assert len(chosen_by("validation", frame.drop(columns="sweep"), ["fusion", "sweep"]).frame) == 1  # of a folder


def test_a_run_that_ends_by_its_steps_has_no_number_of_epochs() -> None:
    frame = pd.concat([
        runs("last", [0.5, 0.6], epochs=3), runs("last", [0.7, 0.7], epochs=5),
        runs("last", [0.4, 0.4], shots=16, max_steps=200), runs("last", [0.3, 0.3], shots=16, max_steps=400),
    ])  # fmt: skip
    chosen = chosen_by("validation", frame)
    assert chosen.notes == [
        "chosen by validation: epochs of 3, 5", "epochs 5 is the largest that was tried, try larger ones: last"
    ]  # fmt: skip
    groups = RunGroups(chosen.frame, chosen=("epochs",))
    rows = [dict(zip(*two, strict=True)) for two in _rows_of(markdown(summarise(groups)))]
    assert [(row["max_steps"], row["epochs"], row["score"]) for row in rows] == [
        ("–", "5", "70.0 ± 0.0"), ("200", "–", "40.0 ± 0.0"), ("400", "–", "30.0 ± 0.0")
    ]  # fmt: skip


def _rows_of(table: str) -> list[tuple[list[str], list[str]]]:
    head, _, *rows = ([cell.strip("* ") for cell in line.split("|")] for line in table.split("\n\n")[0].splitlines())
    return [(head, row) for row in rows]
