"""Runs that begin with a trained run's weights, and parts that are not trained."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fusionkit.dataset.labels import load_task
from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.model.warm_start import load_start_weights, open_starts
from fusionkit.fit.train.decisions import predict
from fusionkit.fusions import FUSIONS, fusion_class, named
from fusionkit.heads import HEADS
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tasks import TASKS

LAYERS = tuple(range(7))
# Of one class an example or a word; not those that compare two sequences.
OF_CLASSES = [name for name, entry in HEADS.items() if {"classification", "tagging"} & {*entry.tasks}]


@pytest.fixture(scope="module")
def store(corpus_store: Callable[[str], Store]) -> Store:
    return corpus_store("words")


def choices(**more: Any) -> dict[str, Any]:
    return {"task": "tagging", "head": "crf", "fusions": ("attention",), "epochs": (2,), "lrs": (0.01,), **more}


def weights_of(runs: Path, spec: RunSpec) -> dict[str, Tensor]:
    return load_file(runs / spec.digest / "weights.safetensors")


@pytest.fixture(scope="module")
def origins(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of ``attention`` and one of ``linear``, both for two seeds; tests must not change it."""
    runs = tmp_path_factory.mktemp("origins")
    fit(store, expand(store, **choices(fusions=("attention", "linear"), seeds=2)), RunsFolder(runs))
    return runs


@pytest.fixture
def trained(origins: Path, tmp_path: Path) -> Path:
    """A copy of these runs, to add to."""
    return Path(shutil.copytree(origins, tmp_path / "trained"))


def test_each_run_begins_with_the_one_of_its_fusion_and_seed(store: Store, trained: Path) -> None:
    origins = expand(store, **choices(fusions=("attention", "linear"), seeds=2))
    specs = expand(
        store, **choices(fusions=("attention", "linear"), seeds=2, lrs=(0.1,)), starts=open_starts([trained])
    )
    assert [spec.init_from for spec in specs] == [origin.digest for origin in origins]
    assert {spec.init_part for spec in specs} == {"both"}
    assert not {spec.digest for spec in specs} & {origin.digest for origin in origins}


@pytest.mark.parametrize("freeze", ["fusion", "head"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_frozen_part_stays_bit_for_bit_and_the_other_moves(
    store: Store, trained: Path, watch: Any, freeze: str, optimizer: str
) -> None:
    starts = open_starts([trained])
    again = choices(weight_decay=0.3, optimizer=optimizer, clip_norm=1.0, lrs=(0.05,))
    specs = expand(store, **again, starts=starts, freeze=freeze)
    record = fit(store, specs, RunsFolder(trained), watch, starts)[0]
    before, after = weights_of(trained, starts_of(starts, specs[0]).spec), weights_of(trained, specs[0])
    for name in before:
        assert torch.equal(before[name], after[name]) == name.startswith(freeze), name
    sizes = {part: sum(w.numel() for n, w in before.items() if n.startswith(part)) for part in ("fusion", "head")}
    assert record["trained_parameters"] == sizes[{"fusion": "head", "head": "fusion"}[freeze]]
    assert (record["fusion_parameters"], record["head_parameters"]) == (sizes["fusion"], sizes["head"])
    assert record["init_data"] == store.name


def starts_of(starts: list[TrainedRun], spec: RunSpec) -> TrainedRun:
    return next(start for start in starts if start.spec.digest == spec.init_from)


def test_a_run_with_nothing_to_train_is_scored_as_it_came(store: Store, trained: Path, watch: Any) -> None:
    starts = open_starts([trained])
    spec = expand(store, **choices(), starts=starts, freeze="both")[0]
    record = fit(store, [spec], RunsFolder(trained), watch, starts)[0]
    origin = RunsFolder(trained).record(starts_of(starts, spec).spec)
    assert origin is not None
    assert record["scores"] == origin["scores"]
    assert (record["trained_parameters"], record["curve"], record["best_epoch"]) == (0, [], 0)
    assert watch.epochs == 2  # those that will not be trained count as done
    assert any("nothing is left to train" in line for line in watch.said)
    before, after = weights_of(trained, starts_of(starts, spec).spec), weights_of(trained, spec)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("part", ["fusion", "head", "both"])
def test_only_the_part_asked_for_is_taken(store: Store, trained: Path, part: str) -> None:
    starts = open_starts([trained])
    spec = expand(store, **choices(), starts=starts, init_part=part)[0]
    start = starts_of(starts, spec)
    fresh, model = (build_model(spec, 7, 384, len(start.labels)) for _ in range(2))
    load_start_weights(model, spec, start, {"": start.labels})
    theirs, random = start.model.state_dict(), fresh.state_dict()
    for name, tensor in model.state_dict().items():
        taken = part == "both" or name.startswith(part)
        assert torch.equal(tensor, theirs[name] if taken else random[name]), name
        assert not torch.equal(theirs[name], random[name]), name


@pytest.mark.parametrize("head", OF_CLASSES)
def test_a_heads_classes_are_matched_by_name(store: Store, tmp_path: Path, watch: Any, head: str) -> None:
    task = "classification" if head in ("classifier", "linear-classifier", "bcn") else "tagging"
    gently = {"lrs": (1e-3,), "epochs": (3,)} if head == "bcn" else {}  # at 0.01 it gives one answer to all
    spec = expand(store, **choices(task=task, head=head, fusions=("linear",), **gently))[0]
    fit(store, [spec], RunsFolder(tmp_path), watch)
    [start] = open_starts([tmp_path])
    data = load_task(store, TASKS[task], spec.label, spec.pool, unpooled=head == "bcn")
    rng = np.random.default_rng(0)
    seen = set()
    for labels in ([*reversed(data.labels)], [data.labels[k] for k in rng.permutation(len(data.labels))]):
        other = dataclasses.replace(data, labels=labels)
        model = build_model(spec, 7, 384, len(labels))
        load_start_weights(model, dataclasses.replace(spec, init_part="both"), start, {"": labels})
        for split in (data.train, data.validation):
            wanted = predict(start.model, data, split, LAYERS)
            assert predict(model, other, split, LAYERS) == wanted
            seen |= {name for row in wanted for name in ([row] if isinstance(row, str) else row)}
    assert len(seen) > 1  # an answer that never changes would prove little


def test_a_heads_classes_are_matched_only_where_all_names_are_the_same(store: Store, trained: Path) -> None:
    starts = open_starts([trained])
    spec = expand(store, **choices(), starts=starts)[0]
    start = starts_of(starts, spec)
    other = ["B-place", "B-who", "I-place", "O", "B-team", "I-team"]
    with pytest.raises(UsageError, match="has other classes") as caught:
        load_start_weights(build_model(spec, 7, 384, 6), spec, start, {"": other})
    assert caught.value.expected == "the same 6 names; only here: B-team, I-team"
    assert caught.value.received == "5 names; only there: I-who"
    assert "--init-part fusion" in str(caught.value.remedy)
    load_start_weights(build_model(spec, 7, 384, 6), dataclasses.replace(spec, init_part="fusion"), start, {"": other})


@pytest.mark.parametrize(
    ("changes", "part", "field"),
    [
        ({"fusions": ("concat",)}, None, "fusion, layers"),
        ({"fusions": ("linear:gamma=no",)}, "fusion", "fusion"),
        ({"fusion_layers": ("0,3,6",)}, "fusion", "layers"),
        ({"head": "tagger"}, "head", "head"),
    ],
)
def test_what_cannot_begin_there_is_refused_with_what_differs(
    store: Store, trained: Path, changes: dict[str, Any], part: str | None, field: str
) -> None:
    with pytest.raises(UsageError, match=f"cannot start from any of the 4 runs; what differs: {field}\n"):
        expand(store, **choices(**changes), starts=open_starts([trained]), init_part=part)


def test_another_encoders_run_is_refused(store: Store, trained: Path) -> None:
    start = open_starts([trained])[0]
    encoding = {**start.encoding, "encoder": {**start.encoding["encoder"], "weights": "0" * 64}}
    stranger = dataclasses.replace(start, encoding=encoding)
    with pytest.raises(UsageError, match="what differs: encoder weights") as caught:
        expand(store, **choices(fusions=(start.spec.fusion,)), starts=[stranger])
    assert "encoder weights 000000000000" in str(caught.value.received)


def test_several_runs_that_suit_are_refused_by_name(store: Store, trained: Path, watch: Any) -> None:
    fit(store, expand(store, **choices(lrs=(0.02,))), RunsFolder(trained), watch)
    with pytest.raises(UsageError, match="2 runs suit fusion 'attention', seed 0"):
        expand(store, **choices(), starts=open_starts([trained]))


def test_a_head_over_states_of_another_width_is_refused(
    store: Store, trained: Path, watch: Any, tmp_path: Path
) -> None:
    starts = open_starts([trained])[:1]
    specs = expand(store, **choices(fusions=("concat",)), starts=starts, init_part="head")
    start = starts_of(starts, specs[0])
    with pytest.raises(UsageError, match="weights of another shape") as caught:
        load_start_weights(build_model(specs[0], 6, 384, 5), specs[0], start, {"": start.labels})
    assert "[256, 256]" in str(caught.value.expected)
    assert "[256, 384]" in str(caught.value.received)


def test_weights_that_one_run_of_a_sweep_cannot_take_are_refused_before_the_first(store: Store, trained: Path) -> None:
    before = [*RunsFolder(trained).record_files()]
    starts = open_starts([trained])[:1]
    specs = expand(store, **choices(fusions=("linear", "concat")), starts=starts, init_part="head")
    with pytest.raises(UsageError, match="weights of another shape"):
        fit(store, specs, RunsFolder(trained), starts=starts)
    assert [*RunsFolder(trained).record_files()] == before


def test_places_of_runs_are_no_options_of_expand_which_takes_them_opened(store: Store) -> None:
    for place in ("draw_from", "init_from"):
        with pytest.raises(UsageError, match=f"unknown option of a sweep '{place}'"):
            expand(store, **choices(**{place: "runs"}))


def test_a_part_to_take_without_a_run_is_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="--init-part says what to take"):
        expand(store, **choices(), init_part="head")


def test_a_random_part_that_is_frozen_is_said_aloud(store: Store, tmp_path: Path, watch: Any) -> None:
    spec = expand(store, **choices(), freeze="head")[0]
    record = fit(store, [spec], RunsFolder(tmp_path), watch)[0]
    assert any(line.startswith("--freeze head: it was not taken from a trained run") for line in watch.said)
    assert record["trained_parameters"] == 384


def test_every_fusion_begins_where_another_ended(store: Store, tmp_path: Path, watch: Any) -> None:
    every = [re.sub(":[a-z]+$", ":1", named(name, fusion_class(name))) for name in FUSIONS]
    first = expand(store, **choices(fusions=every, epochs=(1,)))
    ended = fit(store, first, RunsFolder(tmp_path / "first"), watch)
    starts = open_starts([tmp_path / "first"])
    specs = expand(store, **choices(fusions=every, epochs=(1,)), starts=starts, freeze="both")
    begun = fit(store, specs, RunsFolder(tmp_path / "second"), watch, starts)
    for origin, spec, theirs, ours in zip(first, specs, ended, begun, strict=True):
        assert ours["scores"] == theirs["scores"], spec.fusion
        before, after = weights_of(tmp_path / "first", origin), weights_of(tmp_path / "second", spec)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before), spec.fusion
