"""Sweeps from files and flags: what goes first, what is missing, and that both know the same options."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from fusionkit.cli.fit import fit
from fusionkit.fit import expand
from fusionkit.fit.sweep.file import ELSEWHERE
from fusionkit.options.entry import SWEPT, WHOLE
from fusionkit.options.tables import FIT, STORES
from fusionkit.store import open_store

Command = Callable[..., Any]


def test_a_file_has_a_key_for_each_option_by_its_parameter() -> None:
    options = {param.opts[0].removeprefix("--"): param.name for param in fit.params if isinstance(param, click.Option)}
    keys = {**FIT, **STORES}
    assert {name: key.parameter for name, key in keys.items() if name != "store"} == {
        option: name for option, name in options.items() if option not in ELSEWHERE
    }
    assert {*keys, *ELSEWHERE} - {"store"} == set(options)


def test_an_option_left_out_is_what_expand_makes_of_it(store: Path) -> None:
    """Flags that are not given are not passed on: what the help says must be so all the same."""
    [run] = expand(open_store(store), label="intent", fusions=("last",))
    shown = {param.opts[0].removeprefix("--"): param for param in fit.params if getattr(param, "show_default", False)}
    settled = ("order", "from-layer")  # by the store
    defaults = {FIT[flag].name: param.default for flag, param in shown.items() if flag in FIT and flag not in settled}
    made = {name: getattr(run, name) for name in defaults}
    assert made == {name: value[0] if isinstance(value, tuple) else value for name, value in defaults.items()}
    assert (shown["order"].default, run.order) == ("auto", "shuffle")
    assert (shown["from-layer"].default, run.from_layer) == ("auto", None)
    assert len(made) == 19


def test_lists_are_where_options_may_be_given_several_times() -> None:
    several = {param.opts[0].removeprefix("--") for param in fit.params if getattr(param, "multiple", False)}
    several -= set(ELSEWHERE)
    named = {name for name, entry in FIT.items() if entry.named}  # given once for each task: a block, not a list
    assert {name for name, entry in {**FIT, **STORES}.items() if entry.lists in (SWEPT, WHOLE)} == (
        several - named | {"store"}
    )
    assert named <= several


@pytest.fixture
def sweep(store: Path, tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        f"store: {store}\nlabel: intent\nepochs: 1\nseeds: 2\nfloor: none\n"
        "runs:\n  - fusion: last\n    lr: 2e-3\n  - fusion: linear\n    lr: [1e-3, 5e-4]\n"
    )
    return path


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_device_beside_a_cluster_is_refused_before_any_worker(
    fusionkit: Command, store: Path, tmp_path: Path, more: list[str]
) -> None:
    runs = tmp_path / "runs"
    done = fusionkit(
        "fit", store, "--label", "intent", "--out", runs, "--device", "cuda:0", "--cluster", "local", *more
    )
    assert done.code == 2
    assert "the workers of a cluster have no device 'cuda:0'" in done.err
    assert not runs.exists()


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_device_that_is_not_there_is_refused_before_any_run(
    fusionkit: Command, store: Path, tmp_path: Path, more: list[str]
) -> None:
    done = fusionkit("fit", store, "--label", "intent", "--out", tmp_path / "runs", "--device", "cuda:99", *more)
    assert done.code == 2
    assert "device 'cuda:99' cannot be used" in done.err
    assert "Traceback" not in done.err


def runs_of(done: Any) -> list[tuple[str, float, int, int]]:
    assert done.code == 0, done.err
    return [(r["fusion"], r["lr"], r["data_seed"], r["init_seed"]) for r in done.json]


def test_a_file_is_a_sweep_and_run_again_trains_nothing(fusionkit: Command, sweep: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    wanted = [
        (fusion, lr, k, k) for fusion, lr in (("last", 2e-3), ("linear", 1e-3), ("linear", 5e-4)) for k in range(2)
    ]
    assert runs_of(fusionkit("fit", "--sweep", sweep, "--out", runs, "--json")) == wanted
    again = fusionkit("fit", "--sweep", sweep, "--out", runs, "--json")
    assert (runs_of(again), again.err.splitlines()[1:]) == (wanted, ["6 of 6 runs there already"])


def test_runs_of_so_many_steps_are_runs_of_a_table(fusionkit: Command, store: Path, tmp_path: Path) -> None:
    options = ("--label", "intent", "--fusion", "last", "--floor", "none", "--max-steps", 2, "--max-steps", 3, "--json")
    done = fusionkit("fit", store, "--out", tmp_path / "runs", *options)
    assert done.code == 0, done.err
    assert [(run["max_steps"], run["steps"]) for run in done.json] == [(2, 2), (3, 3)]
    table = fusionkit("results", tmp_path / "runs", "--json").json
    assert sorted((row["max_steps"], row["runs"]) for row in table) == [(2, 1), (3, 1)]
    refused = fusionkit("fit", store, "--out", tmp_path / "none", "--label", "intent", "--max-steps", 0)
    assert (refused.code, "--max-steps cannot be 0" in refused.err) == (2, True)


def test_flags_go_before_the_file(fusionkit: Command, sweep: Path, store: Path, small: Path, tmp_path: Path) -> None:
    flags = ("--fusion", "concat", "--data-seeds", 1, "--init-seeds", 2)
    done = fusionkit("fit", "--sweep", sweep, "--out", tmp_path / "one", *flags, "--json")
    assert runs_of(done) == [("concat", lr, 0, k) for lr in (2e-3, 1e-3, 5e-4) for k in range(2)]
    others = ("--label", "label", "--lr", "1e-3", "--seeds", 1)
    done = fusionkit("fit", small, "--sweep", sweep, "--out", tmp_path / "two", *others, "--json")
    assert runs_of(done) == [("last", 1e-3, 0, 0), ("linear", 1e-3, 0, 0)]
    assert {record["label"] for record in done.json} == {"label"}


def test_stores_of_a_file_lie_beside_it(fusionkit: Command, small: Path, tmp_path: Path) -> None:
    (tmp_path / "here.store").symlink_to(small)
    (tmp_path / "sweep.yaml").write_text("store: here.store\nfusion: last\nepochs: 1\nevaluate-on: here.store\n")
    assert runs_of(fusionkit("fit", "--sweep", tmp_path / "sweep.yaml", "--out", tmp_path / "runs", "--json"))


def test_draws_are_kept_given_back_and_shown(fusionkit: Command, store: Path, tmp_path: Path) -> None:
    options = ("--label", "slots", "--fusion", "last", "--epochs", 1)
    runs = tmp_path / "runs"
    drawing = ("--shots", 1, "--shots", 2, "--draw", "nested", "--seeds", 2, "--validate-on", 10)
    assert fusionkit("fit", store, "--out", runs, *options, *drawing).code == 0
    records = [json.loads(path.read_text()) for path in runs.glob("*/run.json")]
    drawn = {(r["spec"]["data_seed"], r["spec"]["shots"]): set(r["draw"]) for r in records}
    assert all(drawn[seed, 1] < drawn[seed, 2] for seed in range(2))
    assert all(record["watched"] == 10 for record in records)
    again = fusionkit("fit", store, "--out", runs, *options, "--draw-from", runs, "--seeds", 2, "--json")
    assert again.code == 0, again.err
    assert {(r["draw"], r["shots"], r["data_seed"]) for r in again.json} == {
        ("ids", shots, seed) for shots in (1, 2) for seed in range(2)
    }
    # Each seed has its own draw; that is averaged over, the way of drawing is not.
    table = fusionkit("results", runs, "--json").json
    assert [(row["shots"], row["draw"], row["runs"]) for row in table] == [
        (shots, draw, 2) for draw in ("nested", "ids") for shots in (1, 2)
    ]
    assert all("draw_ids" not in row for row in table)
    ids = tmp_path / "ids.json"
    for others in (sorted(drawn[0, 1]), sorted(drawn[1, 1])):
        ids.write_text(json.dumps(others))
        assert fusionkit("fit", store, "--out", tmp_path / "lists", *options, "--draw-from", ids).code == 0
    table = fusionkit("results", tmp_path / "lists", "--json").json
    assert len({row["draw_ids"] for row in table}) == len(table) == 2  # two lists under one seed are no trials


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("--sweep {folder}/none.yaml", "none.yaml is no sweep that can be read"),
        ("--sweep {folder}/wrong.yaml", "wrong.yaml, line 1: unknown key 'fusoin'"),
        ("--sweep {folder}/bare.yaml", "fit needs STORE"),
        ("{store} --label slots --seeds 2 --data-seeds 2", "--seeds counts trials that differ in both seeds"),
        ("{store} --label slots --draw nested", "--draw nested draws nothing"),
        ("{store} --label intent --shots 50 --draw stratified", "a stratified draw takes more training examples than"),
        ("{store} --label slots --draw-from {folder}/none", "none holds no finished run"),
        ("{store} --label slots --draw-from {folder}/wrong.yaml", "wrong.yaml is no JSON file"),
        ("{store} --label slots --draw-from {folder}/ids.json", "1 of 1 ids to draw are not in train"),
        (
            "{store} --label slots --draw-from {folder}/ids.json --shots 2",
            "a list of ids already fixes the number of examples",
        ),
        ("{store} --sweep {folder}/cluster.yaml", "cluster.yaml, line 4: unknown cluster setting 'wrokers'"),
        ("{store} --label slots --cluster slrum", "unknown kind of cluster 'slrum'"),
        ("{store} --label slots --validate-on 0", "--validate-on takes a number of validation examples"),
    ],
)
def test_a_wrong_sweep_is_one_message(fusionkit: Command, store: Path, tmp_path: Path, line: str, what: str) -> None:
    (tmp_path / "wrong.yaml").write_text("fusoin: last\n")
    (tmp_path / "cluster.yaml").write_text("fusion: last\nlabel: slots\ncluster:\n  wrokers: 2\n")
    (tmp_path / "bare.yaml").write_text("fusion: last\n")
    (tmp_path / "ids.json").write_text('["nobody"]')
    arguments = [part.format(folder=tmp_path, store=store) for part in line.split()]
    done = fusionkit("fit", *arguments, "--out", tmp_path / "runs")
    assert (done.code, done.out) == (2, "")
    assert what in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "runs").exists()


def test_an_online_code_is_trained_block_by_block_and_summed_up(
    fusionkit: Command, small: Path, tmp_path: Path
) -> None:
    words = ("--fusion", "last", "--epochs", 1, "--mdl", "--floor", "none")
    done = fusionkit("fit", small, *words, "--out", tmp_path / "runs")
    assert done.code == 0, done.err
    assert "compression" in done.out
    [row] = fusionkit("results", tmp_path / "runs", "--json").json
    assert (row["runs"], row["codes"], row["metric"]) == (1, 1, "accuracy")
    assert row["compression"] == pytest.approx(12 / row["code_bits"])  # twelve labels of two classes
    blocks = [path.parent for path in (tmp_path / "runs").glob("*/run.json")]
    assert len(blocks) == 11
    assert len([path for path in blocks if (path / "weights.safetensors").exists()]) == 1
    assert fusionkit("fit", small, "--mdl", "--halving", "--lr", 1e-3, "--lr", 1e-2, "--out", tmp_path / "no").code == 2
