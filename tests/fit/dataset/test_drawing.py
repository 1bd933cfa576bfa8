"""The draw of a run: what a class is, what is paired, what is given back, and what chooses the epoch."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.draws import draw_of, watched_split
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.targets import Columns, match_splits
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.executor.prepare import prepare
from fusionkit.fit.executor.units import plan_units
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.sweep.checks import seed_pairs
from fusionkit.fit.sweep.fixed_draws import FixedDraws, open_draws, with_draws
from fusionkit.fit.train.decisions import score
from fusionkit.fit.train.loop import train_run, train_unit
from fusionkit.fit.train.result import RunResult
from fusionkit.runs.record import digest_of_record
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tasks import TASKS

Toy = Callable[..., TaskData]


@pytest.fixture
def store(corpus_store: Callable[[str], Store]) -> Store:
    return corpus_store("words")


def loaded(store: Store, task: str) -> TaskData:
    return load_task(store, *choose_task(store, task, None), "mean" if task == "classification" else None)


def run_spec(data: TaskData, **fields: Any) -> RunSpec:
    head = data.task.heads[0]
    return RunSpec(**{"store": "s", "task": data.task.name, "label": "x", "fusion": "linear", "head": head} | fields)


def test_of_span_tags_a_class_is_an_entity_type_of_a_word_with_a_row(store: Store) -> None:
    train = loaded(store, "tagging").train
    held = {name: [train.ids[i] for i in found] for name, found in train.holders.items()}
    # The fifth sentence is longer than the encoder reads: its last word, a place, has no row.
    assert held == {"place": ["train-0", "train-2"], "who": ["train-1", "train-4", "train-7"]}


def test_of_labels_a_class_is_a_label(store: Store) -> None:
    train = loaded(store, "classification").train
    held = {name: [train.gold[i] for i in found] for name, found in train.holders.items()}
    assert {name: set(found) for name, found in held.items()} == {"food": {"food"}, "weather": {"weather"}}
    assert sum(map(len, held.values())) == len(train)


def test_of_other_tags_a_class_is_a_tag(toy: Toy) -> None:
    train = toy(words=True).train
    assert {name: found.tolist() for name, found in train.holders.items()} == {
        tag: [i for i, tags in enumerate(train.gold) if tag in tags] for tag in ("ADJ", "NOUN")
    }


class Label(str):
    """A label that counts how often labels are hashed: each look-up in a set or a dictionary hashes one."""

    hashed = 0

    def __hash__(self) -> int:
        Label.hashed += 1
        return super().__hash__()


def test_the_work_for_many_classes_grows_with_the_examples_alone(store: Store) -> None:
    names = [Label(k) for k in range(500)]
    count = len(store["train"].examples)
    columns: Columns = {"train": ([[name] for name in names[:count]], np.ones(count, dtype=bool))}
    split = match_splits(store, columns, TASKS["multi-label"], "mean", list(names), [])["train"]
    assert Label.hashed < 5 * len(names)
    Label.hashed = 0
    assert list(replace(split, gold=[[name] for name in names]).holders) == sorted(names)
    assert Label.hashed < 10 * len(names)


@pytest.mark.parametrize("words", [False, True])
def test_a_stratified_run_learns_from_so_many_of_each_class(toy: Toy, words: bool) -> None:
    data = toy(words=words)
    outcome = train_run(run_spec(data, draw="stratified", shots=5, epochs=1, data_seed=2), data, (0, 1, 2), 6, idle)
    assert outcome.draw is not None
    gold = [data.train.gold[data.train.ids.index(one)] for one in outcome.draw]
    counts = [sum(name in (tags if words else [tags]) for tags in gold) for name in data.labels]
    assert min(counts) >= 5 if words else counts == [5, 5]
    assert len(outcome.draw) <= 10


def idle() -> None:
    """Nobody watches."""


@pytest.mark.parametrize("draw", ["uniform", "stratified", "nested"])
def test_runs_with_one_data_seed_see_the_same_examples_in_the_same_order(
    toy: Toy, draw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the fusion, the rate, the init, the dropout or the decay."""
    data = toy(words=True)
    seen: list[tuple[str, ...]] = []
    batch = TaskSplit.batch

    def watched(split: TaskSplit, examples: Any, layers: tuple[int, ...], states: Any = None) -> Batch:
        if torch.is_grad_enabled():
            seen.append(tuple(split.ids[i] for i in examples))
        return batch(split, examples, layers, states)

    monkeypatch.setattr(TaskSplit, "batch", watched)
    base = run_spec(data, draw=draw, shots=8, data_seed=3, epochs=2, batch_size=5, lr=1e-3)
    variants: list[dict[str, Any]] = [
        {}, {"fusion": "attention"}, {"fusion": "extra-layers:1"}, {"lr": 1e-2}, {"init_seed": 9}, {"dropout": 0.3},
        {"head": "crf"}, {"weight_decay": 0.1}, {"validate_on": 20}, {"data_seed": 4},
    ]  # fmt: skip
    orders = []
    for changed in variants:
        seen.clear()
        train_run(replace(base, **changed), data, (0, 1, 2), 6, idle)
        orders.append(list(seen))
    assert all(order == orders[0] for order in orders[:-1])
    assert orders[-1] != orders[0]
    examples = -(-len({one for ids in orders[0] for one in ids}) // 5)
    assert len(orders[0]) == 2 * examples


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"draw": "nested"}, "--draw nested draws nothing: the run learns from all of train"),
        ({"draw": "ids", "draw_ids": "0" * 16}, f"the draw {'0' * 16} is not given"),
        ({"task": "regression", "draw": "stratified", "shots": 1}, "the task regression has no classes to draw"),
        ({"task": "mlm", "draw": "stratified", "shots": 1}, "the task mlm has no classes to draw"),
    ],
)
def test_a_draw_of_nothing_is_refused(toy: Toy, fields: dict[str, Any], what: str) -> None:
    data = toy()
    with pytest.raises(UsageError) as caught:
        draw_of(run_spec(data, **fields), data)
    assert caught.value.what.startswith(what)


def test_draws_that_the_task_has_no_classes_for_are_refused_before_anything_is_loaded(store: Store) -> None:
    with pytest.raises(UsageError, match="--draw nested draws nothing"):
        expand(store, task="tagging", draw="nested")
    with pytest.raises(UsageError, match="unknown draw 'stratifed'") as caught:
        expand(store, task="tagging", draw="stratifed", shots=(1,))
    assert caught.value.remedy == "did you mean 'stratified'?"


def fitted(store: Store, folder: Path, watch: Any, **choices: Any) -> list[dict[str, Any]]:
    specs = expand(store, task="tagging", fusions=("last",), epochs=(1,), **choices)
    return fit(store, specs, RunsFolder(folder), watch)


def test_a_draw_is_given_back_by_seed_and_shots(store: Store, tmp_path: Path, watch: Any) -> None:
    first = fitted(store, tmp_path / "one", watch, shots=(1, 2), seeds=3)
    draws = open_draws(tmp_path / "one")
    specs = expand(store, task="tagging", fusions=("linear",), epochs=(1,), seeds=3, draws=draws)
    again = fit(store, specs, RunsFolder(tmp_path / "two"), watch, draws=draws)
    wanted = {(r["spec"]["data_seed"], r["spec"]["shots"]): r["draw"] for r in first}
    assert {(r["spec"]["data_seed"], r["spec"]["shots"]): r["draw"] for r in again} == wanted
    assert len(again) == len(wanted) == 6
    assert {spec.draw for spec in specs} == {"ids"}
    # Equal draws have equal digests, others others.
    assert len({spec.draw_ids for spec in specs}) == len({tuple(ids) for ids in wanted.values()})
    assert fit(store, specs, RunsFolder(tmp_path / "two"), watch, draws=draws) == json.loads(json.dumps(again))


def test_runs_trained_together_have_one_draw_a_data_seed_and_one_part_to_watch(toy: Toy) -> None:
    base = run_spec(toy(), shots=2)
    given = [replace(base, draw="ids", draw_ids=ids) for ids in ("0" * 16, "1" * 16)]
    kinds = [base, replace(base, draw="nested"), replace(base, draw="stratified"), *given, replace(base, validate_on=9)]
    specs = [replace(kind, data_seed=seed, lr=lr) for lr in (1e-3, 1e-2) for kind in kinds for seed in range(2)]
    units = plan_units(specs)
    assert sorted(map(len, units)) == [4] * 6
    assert all(len({(s.draw, s.draw_ids, s.validate_on) for s in unit}) == 1 for unit in units)


def test_runs_trained_together_learn_and_are_judged_as_alone(toy: Toy) -> None:
    """Stratified draws of several sizes, several seeds, a part of validation, each under two fusions and two rates."""
    data = toy(words=True, learnable=False)
    base = run_spec(data, shots=6, draw="stratified", validate_on=30, epochs=3, batch_size=4)
    choices = itertools.product(("last", "linear"), (1e-3, 1e-2), range(3), range(2))
    specs = [replace(base, fusion=f, lr=lr, data_seed=k, init_seed=m) for f, lr, k, m in choices]

    def layers(spec: RunSpec) -> tuple[int, ...]:
        return (2,) if spec.fusion == "last" else (0, 1, 2)

    together = dict(train_unit(specs, data, layers, 6, lambda _: None))
    assert len(together) == 24
    sizes = set()
    for spec in specs:
        outcome, alone = together[spec], train_run(spec, data, layers(spec), 6, idle)
        assert isinstance(outcome, RunResult)
        assert (outcome.draw, outcome.watched, outcome.best_epoch) == (alone.draw, 30, alone.best_epoch)
        assert outcome.scores == alone.scores
        losses = [[point["loss"] for point in each.curve] for each in (outcome, alone)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        sizes.add(len(outcome.draw or ()))
    assert len(sizes) > 1


def test_a_draw_that_was_given_back_can_be_given_back(store: Store, tmp_path: Path, watch: Any) -> None:
    first = fitted(store, tmp_path / "one", watch, shots=(2,), draw="nested")
    given = open_draws(tmp_path / "one")
    specs = expand(store, task="tagging", fusions=("last",), epochs=(1,), draws=given)
    second = fit(store, specs, RunsFolder(tmp_path / "two"), watch, draws=given)
    again = open_draws(tmp_path / "two" / specs[0].digest)
    assert [one.digest for one in again] == [specs[0].draw_ids]
    assert first[0]["draw"] == second[0]["draw"] == list(again[0].ids)


def test_a_list_of_ids_is_a_draw_of_every_run_in_any_order(store: Store, tmp_path: Path, watch: Any) -> None:
    path = tmp_path / "ids.json"
    found = []
    for ids in (["train-7", "train-0", "train-4"], ["train-0", "train-4", "train-7"]):
        path.write_text(json.dumps(ids))
        draws = open_draws(path)
        specs = expand(store, task="tagging", fusions=("last",), epochs=(1,), seeds=2, draws=draws)
        assert [(spec.shots, spec.draw) for spec in specs] == [(None, "ids")] * 2
        records = fit(store, specs, RunsFolder(tmp_path / "runs"), watch, draws=draws)
        assert [record["draw"] for record in records] == [["train-0", "train-4", "train-7"]] * 2
        found.append(specs)
    assert found[0] == found[1]
    assert len(watch.ended) == 2


def test_an_id_that_is_not_in_train_is_refused_before_any_run(store: Store, tmp_path: Path, watch: Any) -> None:
    draws = [FixedDraws(("train-0", "99", "x"))]
    specs = expand(store, task="tagging", fusions=("last",), draws=draws)
    with pytest.raises(UsageError) as caught:
        fit(store, specs, RunsFolder(tmp_path / "runs"), watch, draws=draws)
    assert caught.value.what == "2 of 3 ids to draw are not in train"
    assert caught.value.received == "99, x"
    assert not (tmp_path / "runs").exists()


def test_an_id_of_several_examples_is_refused(toy: Toy) -> None:
    data = toy()
    twins = replace(data.train, ids=["twin", "twin", *data.train.ids[2:]])
    drawn = FixedDraws(("twin", "train-5"))
    data = replace(data, train=twins, draws={drawn.digest: drawn.ids})
    with pytest.raises(UsageError, match="1 of 2 ids to draw are those of several training examples") as caught:
        draw_of(run_spec(data, draw="ids", draw_ids=drawn.digest), data)
    assert caught.value.received == "twin"


@pytest.mark.parametrize(
    ("content", "what", "received"),
    [
        ("[]", "is no list of ids", "[]"),
        ("{}", "is no list of ids", "{}"),
        ('["1", 2.5]', "is no list of ids", '["1", 2.5]'),
        ("[true]", "is no list of ids", "[true]"),
        ('["1", 2, 1]', "is no list of ids", "'1' twice"),
        ('["1"', "is no JSON file", "delimiter"),
    ],
)
def test_a_file_that_is_no_list_of_ids_is_refused(tmp_path: Path, content: str, what: str, received: str) -> None:
    path = tmp_path / "ids.json"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        open_draws(path)
    assert caught.value.what == f"{path} {what}"
    assert received in str(caught.value.received)


def test_ids_may_be_written_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "ids.json"
    path.write_text('[3, "5"]')
    assert open_draws(path) == [FixedDraws(("3", "5"))]


def test_a_digest_of_many_ids_is_computed_once() -> None:
    """Each run of a sweep asks for it."""
    draw = FixedDraws(("b", "a"))
    assert draw.digest is draw.digest


def drawn(ids: str, **fields: Any) -> FixedDraws:
    plain = {"store": "s", "task": "tagging", "label": "x", "fusion": "last", "head": "crf", "shots": 2}
    return FixedDraws(tuple(ids), RunSpec(**{**plain, **fields}))


def test_runs_over_the_same_store_and_column_are_taken_first() -> None:
    wanted = drawn("ab").run
    assert wanted is not None
    others = [drawn("cd", store="t"), drawn("ef", label="y"), drawn("gh", data_seed=1), drawn("ij", shots=3)]
    [spec] = with_draws([wanted], [*others, drawn("ab")])
    assert spec.draw_ids == FixedDraws(("b", "a")).digest
    [spec] = with_draws([wanted], [others[0], *others[2:]])  # the same data, encoded by another encoder
    assert spec.draw_ids == others[0].digest


@pytest.mark.parametrize(
    ("given", "what", "received"),
    [
        ([drawn("ab", data_seed=1), drawn("cd", shots=4)], "no draw", "2 shots by seed 1, 4 shots by seed 0"),
        ([drawn("ab"), drawn("cd", draw="nested")], "different draws", "(uniform)"),
    ],
)
def test_a_draw_that_is_none_or_several_is_refused(given: list[FixedDraws], what: str, received: str) -> None:
    spec = drawn("").run
    assert spec is not None
    with pytest.raises(UsageError) as caught:
        with_draws([spec], given)
    assert caught.value.what == f"the runs have {what} of 2 shots by data seed 0"
    assert received in str(caught.value.received)


def test_runs_that_drew_nothing_have_nothing_to_give(store: Store, tmp_path: Path, watch: Any) -> None:
    records = fitted(store, tmp_path / "runs", watch, seeds=2)
    folders = tuple(str(tmp_path / "runs" / digest_of_record(record)) for record in records)
    places: list[Path | tuple[str, ...]] = [tmp_path / "runs", folders]
    for place in places:
        with pytest.raises(UsageError) as caught:
            open_draws(place)
        assert caught.value.what == f"{tmp_path / 'runs'} holds no draw"
        assert caught.value.received == "2 runs on all of train"


@pytest.mark.parametrize(
    ("choices", "what"),
    [
        ({"shots": (2,)}, "a list of ids already fixes the number of examples"),
        ({"shots": (2,), "draw": "nested"}, "--draw and --draw-from exclude each other"),
    ],
)
def test_a_list_leaves_nothing_to_choose(store: Store, choices: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand(store, task="tagging", draws=[FixedDraws(("1",))], **choices)
    assert caught.value.what == what


def test_seeds_of_data_and_weights_are_crossed(store: Store) -> None:
    specs = expand(store, task="tagging", fusions=("last",), data_seeds=3, init_seeds=2)
    assert [(s.data_seed, s.init_seed) for s in specs] == list(itertools.product(range(3), range(2)))
    assert seed_pairs() == [(0, 0)]
    assert seed_pairs(seeds=3) == [(0, 0), (1, 1), (2, 2)]
    assert seed_pairs(data_seeds=2) == [(0, 0), (1, 0)]
    assert seed_pairs(init_seeds=2) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("counts", "what"),
    [
        ({"seeds": 2, "data_seeds": 2}, "--seeds counts trials that differ in both seeds"),
        ({"seeds": 1, "init_seeds": 1}, "--seeds counts trials that differ in both seeds"),
        ({"seeds": 0}, "--seeds counts trials"),
        ({"data_seeds": 0}, "--data-seeds counts trials"),
    ],
)
def test_seeds_that_are_counted_twice_or_not_at_all_are_refused(counts: dict[str, int], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        seed_pairs(**counts)
    assert caught.value.what == what


@pytest.mark.parametrize("words", [False, True])
def test_a_part_of_validation_chooses_the_epoch_and_all_of_it_is_scored(toy: Toy, words: bool) -> None:
    data = toy(words=words, learnable=False)  # chance makes the scores go up and down
    spec = run_spec(data, epochs=8, lr=1e-2, init_seed=3, validate_on=30)
    chosen = np.sort(np.random.default_rng([0, 9]).permutation(100)[:30])
    assert watched_split(spec, data).ids == [f"validation-{i}" for i in chosen]
    outcome = train_run(spec, data, (0, 1, 2), 6, idle)
    # The same run judged by those thirty alone: the same curve and epoch, but its validation is them.
    small = replace(data, validation=data.validation.subset(chosen))
    alone = train_run(replace(spec, validate_on=None), small, (0, 1, 2), 6, idle)
    assert outcome.curve == alone.curve
    assert (outcome.best_epoch, outcome.score) == (alone.best_epoch, alone.score)
    assert all(torch.equal(outcome.weights[name], alone.weights[name]) for name in alone.weights)
    assert (outcome.watched, alone.watched) == (30, 30)
    assert alone.validation_score == max(point["validation_score"] for point in alone.curve)
    assert outcome.validation_score == outcome.scores["validation"][outcome.metric]
    assert outcome.validation_score == rescored(outcome.weights, spec, data)


def rescored(weights: Any, spec: RunSpec, data: TaskData) -> float:
    """The first score of weights on all of validation."""
    model = build_model(spec, 3, 6, 2)
    model.load_state_dict(weights)
    return next(iter(score(model, data, data.validation, (0, 1, 2)).values()))


def test_more_than_there_is_to_watch_is_all_of_it(toy: Toy) -> None:
    data = toy()
    for count in (100, 101, 5000):
        assert watched_split(run_spec(data, validate_on=count), data) is data.validation


@pytest.mark.parametrize(("given", "count"), [(2, 2), ("2", 2), ("50%", 2), ("34%", 1), ("100%", None), (None, None)])
def test_a_share_of_validation_is_a_number_of_its_examples(store: Store, given: Any, count: int | None) -> None:
    [spec] = expand(store, task="tagging", fusions=("last",), validate_on=given)
    assert spec.validate_on == count


@pytest.mark.parametrize("given", ["0", "0%", "101%", "half", "-3", "2.5", ""])
def test_a_wrong_share_of_validation_is_refused(store: Store, given: str) -> None:
    with pytest.raises(UsageError, match="--validate-on takes a number of validation examples") as caught:
        expand(store, task="tagging", fusions=("last",), validate_on=given)
    assert caught.value.received == given


def test_where_a_draw_s_runs_are_cut_apart_each_piece_has_its_share_of_every_shape(toy: Toy) -> None:
    base, fusions = run_spec(toy()), ("last", "linear", "concat", "attention")
    specs = [replace(base, fusion=fusion, lr=lr) for fusion in fusions for lr in (1e-3, 2e-3, 3e-3, 4e-3)]
    for widest, each in ((8, 2), (4, 1)):
        units = plan_units(specs, widest)
        assert all(Counter(spec.fusion for spec in unit) == dict.fromkeys(fusions, each) for unit in units)
        assert sorted(spec.digest for unit in units for spec in unit) == sorted(spec.digest for spec in specs)
    (whole,) = plan_units(specs, 16)
    assert set(whole) == set(specs)


def test_a_class_that_no_example_of_train_holds_any_more_is_refused(toy: Toy) -> None:
    """Its only example may have been set aside for validation, or lie in no share of the data."""
    data = toy()
    left = data.train.subset(np.array([i for i, label in enumerate(data.train.gold) if label == "left"]))
    with pytest.raises(UsageError, match="than 1 of 2 classes have") as caught:
        draw_of(run_spec(data, draw="stratified", shots=2), replace(data, train=left))
    assert caught.value.received == "'right' 0"


def test_draws_of_other_data_are_said(store: Store, tmp_path: Path) -> None:
    [spec] = expand(store, task="tagging", fusions=("last",), shots=(2,))
    ids = loaded(store, "tagging").train.ids[:4]
    for name, said in ((store.name, 0), (None, 0), ("another", 1)):
        given = [FixedDraws(tuple(ids), spec, name)]
        prepared = prepare(store, with_draws([spec], given), RunsFolder(tmp_path / "runs"), draws=given)
        notes = [note for note in prepared.notes if "--draw-from" in note]
        assert notes == [f"--draw-from: examples of another are drawn from {store.name}, by their ids alone"] * said
