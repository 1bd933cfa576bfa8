"""Runs that start from a stored layer: those from the text, without the layers below."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fusionkit
from fusionkit.errors import CannotStartError, UsageError
from fusionkit.fit import RunsFolder, fit
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.prepare import prepare
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.fit.model.checkpoint import open_run
from fusionkit.fit.sweep import from_layer
from fusionkit.fit.sweep.from_layer import start_layer
from fusionkit.methods.table import METHODS
from fusionkit.specs import WINDOW, RunSpec
from fusionkit.store import Store
from fusionkit.store.nearby import find_stores, refuse_storeless
from fusionkit.tuning import start
from fusionkit.tuning.ablation import ablate
from fusionkit.tuning.live import StoredStart
from fusionkit.tuning.trained import live_data_of
from fusionkit.tuning.trainer import TunedRun

Train = Callable[..., dict[str, Any]]
Specs = Callable[..., list[RunSpec]]


@pytest.mark.parametrize(
    "choices",
    [
        {"methods": ["top:1"], "fusions": ["linear"], "order": WINDOW},  # lower layers are fused
        {"methods": ["houlsby:4,layers=-2:"], "task": "joint", "label": "label,tags", "head": None, "accumulate": 2},
        pytest.param({"methods": ["lora:2,layers=-1:"], "checkpointing": True}, marks=pytest.mark.soak("products")),
        pytest.param({"methods": ["bitfit:layers=-1:"], "fusions": ["layer:3"]}, marks=pytest.mark.soak("products")),
        pytest.param({"methods": ["pals:4,heads=2,layers=-2:,encoder=frozen"]}, marks=pytest.mark.soak("products")),
    ],
)  # fmt: skip
def test_a_run_from_a_stored_layer_is_the_run_from_the_text(
    exact: Store, train: Train, tmp_path: Path, choices: dict[str, Any]
) -> None:
    """Over states in float32, with dropout in the layers above."""
    choices = {"encoder_lrs": (1e-3,), **choices}
    found = [train(exact, tmp_path / how, from_layer=how, **choices) for how in ("none", "auto")]
    lowest = 2 if "-1:" in choices["methods"][0] or "top:1" in choices["methods"] else 1
    assert [record["spec"]["from_layer"] for record in found] == [None, lowest]
    assert found[0]["training_flops"] > found[1]["training_flops"]
    losses = [[point["loss"] for point in record["curve"]] for record in found]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for split, scores in found[0]["scores"].items():
        assert scores == pytest.approx(found[1]["scores"][split])
    kept = [load_file(record["folder"] / "delta.safetensors") for record in found]
    assert kept[0].keys() == kept[1].keys()
    for name, tensor in kept[0].items():
        if not name.endswith("key.bias"):  # its gradient is rounding error, of which Adam makes whole steps
            torch.testing.assert_close(kept[1][name], tensor, rtol=1e-3, atol=1e-4, msg=name)


def test_states_larger_than_memory_are_read_a_window_at_a_time_for_the_same_bytes(
    exact: Store, specs: Specs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spec,) = specs(exact, methods=["top:1"], fusions=["linear"], order=WINDOW, batch_sizes=(7,))
    monkeypatch.setattr("fusionkit.dataset.draws.WINDOW_CHUNKS", 2, raising=True)
    context = SweepContext(exact)
    run = TunedRun(spec, context, context.data(spec))
    (windows,), steps, seen = run._streams, run._run.length.epoch, []
    order = Sampler(context.data(spec).train, WINDOW, spec.data_seed)
    most = 0
    with torch.no_grad():
        run._attached.train(False)
        for step in range(steps):
            examples, split = windows.minibatch(step)
            seen.append(examples)
            here, whole = (each.batch(examples, run._run.layers).states for each in (split, run._run.draw))
            torch.testing.assert_close(here, whole, rtol=0, atol=0)
            most = max(most, len(split.states.passes.stored.rows))  # type: ignore[attr-defined]
    assert np.concatenate(seen).tolist() == order.examples(1).tolist()
    assert len(order.windows(1)) > 1
    assert 0 < most < len(exact["train"].hidden_states) / 1.5


def test_the_store_and_the_method_say_where_a_run_starts(store: Store, planned: Store, specs: Specs) -> None:
    at = {
        "top:1": 2, "top:2": 1, "top:3": None, "full": None, "frozen": None, "houlsby:4,layers=2:3": 1, "bitfit": None,
        "bitfit:layers=-1:": 2, "prefix:2": None, "lora:2,layers=-1:": 2, "pals:4,heads=2,layers=-1:": None,
    }  # fmt: skip
    assert {method: start_layer(store, method, "auto") for method in at} == at
    assert start_layer(store, "top:1", 1) == start_layer(store, "top:1", "1") == 1
    assert start_layer(planned, "top:1", "auto") is start_layer(store, "top:1", "none") is None
    assert {spec.from_layer for spec in specs(store, methods=["frozen", "top:1"])} == {None, 2}
    assert {spec.from_layer for spec in specs(planned, methods=["top:1"])} == {None}
    assert set(METHODS) >= {method.partition(":")[0] for method in at}


@pytest.mark.parametrize(
    ("method", "asked", "what", "told"),
    [
        ("top:1", "two", "--from-layer takes a stored layer", "auto, none, or the index"),
        ("top:1", "0", "--from-layer takes a stored layer", "the embeddings, which save nothing"),
        ("top:1", "3", "a run of top:1 cannot start from layer 3", "a layer from 1 to 2, below layer 3"),
        ("full", "1", "a run of full cannot start from layer 1", "leaves the lower layers as they are"),
        ("top:1", "2", "the store has no states of layer 2", "--layers 0,1,3,2 --out STORE`, or choose --from-layer"),
    ],
)
def test_a_layer_that_no_run_can_start_from_is_one_error(
    store: Store, specs: Specs, monkeypatch: pytest.MonkeyPatch, method: str, asked: str, what: str, told: str
) -> None:
    monkeypatch.setattr(store, "layers", (0, 1, 3))
    with pytest.raises(UsageError, match=what) as caught:
        specs(store, methods=[method], from_layer=asked)
    assert told in str(caught.value)


def test_a_plan_has_no_layer_to_start_from(planned: Store, specs: Specs) -> None:
    with pytest.raises(UsageError, match="the store has no states of layer 2") as caught:
        specs(planned, methods=["top:1"], from_layer="2")
    assert "without --parts" in str(caught.value)


def test_what_is_saved_is_said_before_it_starts(store: Store, specs: Specs, tmp_path: Path) -> None:
    found = prepare(store, specs(store, methods=["frozen", "top:1"], shots=(4,)), RunsFolder(tmp_path))
    (note,) = (note for note in found.notes if note.startswith("top:1"))
    # 68 examples of 3 layers; of each epoch 8 + 12 examples save 2 layers, of test 16 once.
    assert note.startswith(
        "top:1 starts from stored layer 2 of 3: 3.0 layer passes a training example, 5.0 from the text"
    )
    assert note.endswith(f"after {(3 * 68 - 2 * 16) / (2 * (8 + 12)):.1f} epochs")
    assert 0 < start.start_of(store, "top:1", 2).off < 1e-3  # float16


def test_an_encoder_that_cannot_trains_from_the_text_and_says_so(
    store: Store, specs: Specs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_layer, "_known", {})
    monkeypatch.setattr("fusionkit.tuning.upper_layers.TOLERANCE", -1.0)  # no encoder is equal enough
    (spec,) = specs(store, methods=["top:1"], epochs=(1,))
    assert spec.from_layer is None
    (note,) = (note for note in prepare(store, [spec], RunsFolder(tmp_path)).notes if note.startswith("top:1"))
    assert "trains from the text: BertModel cannot start from layer 2, states of layer 3 that differ by" in note
    with pytest.raises(UsageError, match="BertModel cannot start from layer 2") as caught:
        specs(store, methods=["top:1"], from_layer="2")
    assert "--from-layer none" in str(caught.value)
    assert from_layer.highest_below(store, "top:1") == 2
    monkeypatch.setattr(from_layer, "_known", {})
    monkeypatch.setattr(from_layer, "spare_memory", lambda: 0)  # no room to try it: a run of its own will
    assert start_layer(store, "top:1", "auto") == 2
    asked = specs(store, methods=["top:1"], from_layer="none", epochs=(1,))
    assert [each.digest for each in asked] == [spec.digest]
    (record,) = fit(store, asked, RunsFolder(tmp_path))
    assert record["status"] == "finished"


def test_an_encoder_is_loaded_once_to_try_it_and_not_for_runs_from_the_text(
    store: Store, specs: Specs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = list[str]()

    def refused(store: Store, method: str, layer: int) -> None:
        loads.append(method)
        raise CannotStartError("it cannot start there")

    monkeypatch.setattr(from_layer, "_known", {})
    monkeypatch.setattr(start, "start_of", refused)

    def told(**choices: Any) -> bool:
        found = prepare(store, specs(store, methods=["top:1"], **choices), RunsFolder(tmp_path))
        return any("it cannot start there" in note for note in found.notes)

    assert not told(from_layer="none")
    assert loads == []
    assert told()
    assert told()
    assert loads == ["top:1"]


def test_a_run_from_a_stored_layer_is_scored_from_it(store: Store, train: Train) -> None:
    """From the text its states differ in their last digits from the ones that it learned from."""
    record = train(store, methods=["top:1"], encoder_lrs=(1e-3,))
    run = open_run(record["folder"])
    data = live_data_of(run, SweepContext(store).data(run.spec), store)
    assert isinstance(data.validation.states, StoredStart)
    [found] = fusionkit.evaluate(record["folder"], data=store.path, device="cpu")
    assert found.scores == pytest.approx(record["scores"]["test"], abs=1e-12)


def test_a_run_that_reads_no_states_is_scored_and_ablated_over_a_store_without_them(
    planned: Store, train: Train
) -> None:
    record = train(planned, methods=["houlsby:4"], encoder_lrs=(1e-3,))
    [found] = fusionkit.evaluate(record["folder"], data=planned.path, device="cpu")
    assert found.scores == pytest.approx(record["scores"]["test"], abs=1e-12)
    there = find_stores([], [planned.path], planned=True)
    assert ablate(record["folder"], there).whole == {"": pytest.approx(record["validation_score"])}
    assert find_stores([], [planned.path]) == {}
    with pytest.raises(UsageError, match="holds no finished store"):
        refuse_storeless([planned.path])
