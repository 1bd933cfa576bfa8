"""Widths that a budget sets are those of the plan, and their runs are those of the widths given by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fusionkit.dataset.stores import Stores
from fusionkit.dataset.task_stores import TaskStores
from fusionkit.errors import UsageError
from fusionkit.fit.sweep.blocks import expand_blocks
from fusionkit.fit.sweep.file import read_sweep
from fusionkit.fit.sweep.method_choices import over_frozen_encoder
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.study.read import read_study
from fusionkit.tuning.weights_plan import WeightsPlan

D, L = 16, 3  # of the encoder: width and layers


def runs(store: Stores, *blocks: dict[str, Any]) -> list[RunSpec]:
    usual: dict[str, Any] = {"fusions": ("last",), "epochs": (1,), "pool": "cls"}
    return expand_blocks(store, [{**usual, **block} for block in blocks]).specs


def named(specs: Sequence[RunSpec]) -> list[tuple[str, str]]:
    return [(spec.method, spec.fusion) for spec in specs]


def test_methods_without_a_width_get_the_widest_of_the_budget(stores: TaskStores, model_folder: Path) -> None:
    methods = ("pals", "low-rank:layers=-2:", "houlsby:share=layer", "prefix", "prompt", "full", "bitfit", "pals:12")
    found = runs(stores, {"methods": methods, "budget_per_task": 2000})
    plan = WeightsPlan(str(model_folder), 2)
    # PALs have h = 12 at most: 2 d h + h + d + L (3 h² + 3 h) = 1816, and h is a multiple of its heads.
    assert [spec.method for spec in found[:5]] == [
        "pals:12", "low-rank:29,layers=-2:", "houlsby:19,share=layer", "prefix:20", "prompt:125"
    ]  # fmt: skip
    for spec in found[:5]:
        assert plan.own(spec.method) <= 2000
    for wider in ("pals:18", "low-rank:30,layers=-2:", "houlsby:20,share=layer", "prefix:21", "prompt:126"):
        assert plan.own(wider) > 2000
    assert [spec.method for spec in found[5:]] == ["full", "bitfit"]  # pals:12 by hand is the run that the budget made
    assert found == runs(stores, {"methods": [spec.method for spec in found]})
    assert {row.method for row in plan.usual(2000)} >= {"pals:12"}


def test_a_fusion_of_each_task_takes_of_the_budget(stores: TaskStores, store: Store) -> None:
    each: dict[str, Any] = {"joint_fusion": "each", "budget_per_task": 9000}
    on_top = {
        "fusions": ("projected-attention:depth=2", "projected-ffn", "extra-layers", "ladder"),
        "methods": ("full",),
    }
    found = runs(stores, {**each, **on_top})
    h = 24  # 2 d h + h + d + 2 (4 h² + 6 h) = 5704; of 36 it would be 12004
    assert [spec.fusion for spec in found] == [
        f"projected-attention:{h},depth=2", "projected-ffn:25", "extra-layers:2", "ladder:2"
    ]  # fmt: skip
    # concat has 3 · 16 · 256 + 256 of its own; what is left are three pairs of 32 h + h + d.
    both = runs(stores, {**each, "fusions": ("concat", "last"), "methods": ("low-rank",), "budget_per_task": 13_000})
    assert named(both) == [("low-rank:4", "concat"), ("low-rank:130", "last")]
    shared = runs(stores, {"fusions": ("concat",), "methods": ("low-rank",), "budget_per_task": 13_000})
    assert named(shared) == [("low-rank:130", "concat")]  # all tasks have the fusion in common
    alone = runs(store, {"task": "tagging", "pool": None, "fusions": ("flat",), "budget_per_task": 1500})
    assert named(alone) == [("frozen", "flat:3")]
    chosen = runs(store, {"task": "tagging", "pool": None, "fusions": ("ladder",), "fusion_layers": ("2,3", "all"),
                          "budget_per_task": 900})  # fmt: skip
    assert [(spec.fusion, spec.fusion_layers) for spec in chosen] == [("ladder:3", "2,3"), ("ladder:5", "0,1,2,3")]


def test_each_layer_alone_is_one_that_the_method_of_the_width_changes(store: Store) -> None:
    found = runs(store, {"task": "classification", "label": "label", "fusions": ("layer:*",), "methods": ("prompt",),
                         "budget_per_task": 900})  # fmt: skip
    assert named(found)[:-1] == [(f"prompt:{900 // D}", f"layer:{layer}") for layer in range(1, L + 1)]


def test_the_encoder_is_frozen_whatever_the_method_says_of_it() -> None:
    for text in ("pals:6", "pals:6,encoder=trained", "pals:6,encoder=frozen"):
        assert over_frozen_encoder(text) == "pals:6,encoder=frozen"


def test_all_layers_are_those_that_the_store_has(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "layers", (0, 1, 3))
    found = runs(store, {"task": "tagging", "pool": None, "fusions": ("ladder",), "fusion_layers": ("all", "0,1,3"),
                         "budget_per_task": 900})  # fmt: skip
    assert [(spec.fusion, spec.fusion_layers) for spec in found] == [("ladder:4", "0,1,3")]  # of 0,1,2,3 ladder:5


def test_blocks_with_and_without_open_widths_are_one_sweep(stores: TaskStores) -> None:
    blocks: list[dict[str, Any]] = [{"methods": ("full",)}, {"methods": ("pals", "houlsby"), "freeze": ("encoder",)}]
    found = runs(stores, *({**block, "budget_per_task": 2000} for block in blocks))
    assert [spec.method for spec in found] == ["full", "pals:12,encoder=frozen", "houlsby:9"]


def test_frozen_runs_stand_beside_methods_with_options_of_methods(stores: TaskStores) -> None:
    own: dict[str, Any] = {"encoder_lrs": ("1e-4",), "encoder_dropout": 0.0}
    by_hand = runs(stores, {"methods": ("frozen", "pals:12"), **own})
    assert runs(stores, {"methods": ("frozen", "pals"), "budget_per_task": 2000, **own}) == by_hand
    alone = {"fusions": ("projected-ffn",), "joint_fusion": "each", "budget_per_task": 9000}
    with pytest.raises(UsageError, match="--encoder-lr applies only to methods that train through the encoder"):
        runs(stores, {**alone, **own})


@pytest.mark.parametrize(
    ("block", "match"),
    [
        ({"methods": ("pals",)}, r"method 'pals' is not complete\n.*\n.*\n.*--budget-per-task N"),
        ({"methods": ("pals:12",), "budget_per_task": 9}, "none does"),
        ({"methods": ("pals",), "budget_per_task": 9}, "nothing of it stays within 9 weights, pals:6 has 592"),
        ({"methods": ("top",), "budget_per_task": 9}, "do not depend on its m"),
        ({"fusions": ("layer",), "joint_fusion": "each", "budget_per_task": 9}, "do not depend on its k"),
        ({"methods": ("pals:share=some",), "budget_per_task": 9}, "unknown share of method 'pals'"),
        ({"methods": ("pal",), "budget_per_task": 9}, "unknown method 'pal'"),
        ({"methods": ("full",), "fusions": ("projected-ffn",), "budget_per_task": 9}, "all tasks share fusion"),
        ({"methods": ("pals",), "fusions": ("projected-ffn",), "joint_fusion": "each", "budget_per_task": 9},
         "sets one width"),
        ({"methods": ("pals",), "fusions": ("concat",), "joint_fusion": "each", "budget_per_task": 9},
         "9 leaves no weight beside fusion 'concat'"),
        ({"fusions": ("extra-layers",), "joint_fusion": "each", "budget_per_task": 10**9},
         r"widest that is tried, extra-layers:64, has 209,920 weights, fewer than 1,000,000,000\n  expected: a budget"),
        ({"fusions": ("ladder",), "joint_fusion": "each", "budget_per_task": 10**9}, "widest that is tried, ladder:1,"),
        ({"methods": ("houlsby",), "budget_per_task": 10**12}, "widest that is tried, houlsby:2097151,"),
    ],
)  # fmt: skip
def test_what_cannot_take_a_budget_is_refused_with_the_reason(
    stores: TaskStores, block: dict[str, Any], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        runs(stores, block)


def test_several_columns_of_one_store_share_their_method(store: Store) -> None:
    joint = {"task": "topic=classification,slots=tagging", "label": "topic=label,slots=tags", "budget_per_task": 2000}
    with pytest.raises(UsageError, match="all tasks share method 'pals'"):
        runs(store, {**joint, "methods": ("pals",)})
    found = runs(store, {**joint, "fusions": ("projected-ffn",), "joint_fusion": "each"})
    assert [spec.fusion for spec in found] == ["projected-ffn:10"]


def test_files_have_the_budget_as_flags_have_it(stores: TaskStores, tmp_path: Path) -> None:
    (path := tmp_path / "sweep.yaml").write_text(
        "tasks: [{name: a, store: a.store}, {name: b, store: b.store}]\nfusion: last\npool: cls\nepochs: 1\n"
        "budget-per-task: [2000, 9000]\nruns:\n  - method: [pals, houlsby]\n"
    )
    found = expand_blocks(stores, read_sweep(path).blocks).specs
    assert [spec.method for spec in found] == ["pals:12", "houlsby:9", "pals:24", "houlsby:44"]
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": "y"}\n')
    text = "sources: {a: a.jsonl}\nsweeps:\n  one:\n    store: a\n    method: pals\n"
    (study := tmp_path / "study.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"study.yaml, line 3: method 'pals' is not complete"):
        read_study(study)
    study.write_text(f"{text}    budget-per-task: 2000\n")
    assert read_study(study).sweeps["one"].blocks[0]["budget_per_task"] == 2000
