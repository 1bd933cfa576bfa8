"""Fusions as a sweep takes them: one spelling, chosen layers among those stored, refused before any training."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fusionkit.encode import encode
from fusionkit.encoder import Encoder
from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.sweep.fusion_choices import choose_fusion
from fusionkit.fusions import FUSIONS, fusion_class, named
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import Store, open_store

CorpusStore = Callable[[str], Store]
EVERY = (
    *(re.sub(":[a-z]+$", ":1", named(name, fusion_class(name))) for name in FUSIONS),
    "linear:gamma=no", "linear:norm=token", "linear:embeddings=no", "attention:scale=yes", "dwatt:scale=yes",
)  # fmt: skip


@pytest.fixture(scope="module")
def partial(corpus_store: CorpusStore, minilm: Encoder) -> Store:
    """The corpus again, with layers 0, 3 and 6 alone."""
    source = open_source(str(corpus_store("words").path.parent))
    path = corpus_store("words").path.parent.with_name("partial") / "store"
    encode(source, guess_columns(source), path, EncodeSpec(rows="words", layers="0,3,6", max_length=9), minilm)
    return open_store(path)


def test_a_star_is_each_stored_layer_alone(partial: Store) -> None:
    runs = expand(partial, label="tags", fusions=["layer:*", "last"])
    assert [run.fusion for run in runs] == ["layer:0", "layer:3", "layer:6", "last"]


@pytest.mark.parametrize(
    ("fusion", "layers", "chosen"),
    [
        ("linear", None, ("linear", None)),
        ("linear:gamma=yes,norm=token", None, ("linear:norm=token", None)),
        ("linear", "all", ("linear", "0,1,2,3,4,5,6")),
        ("linear", "-4:", ("linear", "3,4,5,6")),
        ("linear:embeddings=no", "0,3,6", ("linear:embeddings=no", "3,6")),
        ("concat", "6,0,-4", ("concat", "0,3,6")),
        ("dwatt", ":2", ("dwatt", "0,1")),
        ("last", "3,6", ("last", "6")),
        ("extra-layers:1", "2:5", ("extra-layers:1", "4")),
    ],
)
def test_a_choice_has_one_spelling(
    fusion: str, layers: str | None, chosen: tuple[str, str | None], corpus_store: CorpusStore
) -> None:
    assert choose_fusion(corpus_store("words"), fusion, layers) == chosen


def test_all_layers_are_those_that_are_stored(partial: Store) -> None:
    assert choose_fusion(partial, "concat", "all") == ("concat", "0,3,6")
    assert choose_fusion(partial, "attention", "-1,0") == ("attention", "0,6")


@pytest.mark.parametrize(
    ("layers", "what", "expected"),
    [
        ("3,4", "the store has no layer 4", "some of layers 0, 3, 6"),
        ("-4:", "the store has no layer 4, 5", "some of layers 0, 3, 6"),
        ("0,9", "these layers do not exist", "within 0…6"),
        ("three", "these layers do not exist", "within 0…6"),
        ("9:", "no layer is chosen", "within 0…6"),
    ],
)
def test_layers_that_are_not_stored_are_refused(layers: str, what: str, expected: str, partial: Store) -> None:
    with pytest.raises(UsageError) as caught:
        expand(partial, task="tagging", fusions=("linear",), fusion_layers=(layers,))
    assert caught.value.what == what
    assert expected in str(caught.value.expected)
    assert "choose --fusion-layers among these" in str(caught.value.remedy)


@pytest.mark.parametrize("rows", ["cls", "mean"])
def test_extra_layers_over_one_row_an_example_are_refused_with_the_reason(rows: str, corpus_store: CorpusStore) -> None:
    with pytest.raises(UsageError, match=f"rows of {rows} are one an example") as caught:
        expand(corpus_store(rows), task="classification", fusions=("extra-layers:2",))
    assert caught.value.expected == "rows of tokens or words"
    assert "--rows tokens" in str(caught.value.remedy)


@pytest.mark.parametrize("rows", ["tokens", "words", "words-mean"])
def test_extra_layers_over_rows_side_by_side_are_taken(rows: str, corpus_store: CorpusStore) -> None:
    assert len(expand(corpus_store(rows), task="tagging", fusions=("extra-layers:2",))) == 1


def test_variants_of_one_fusion_are_runs_of_their_own(corpus_store: CorpusStore) -> None:
    fusions = ("linear", "linear:gamma=yes", "linear:gamma=no", "dwatt", "dwatt:scale=yes", "dwatt:scale=no")
    specs = expand(corpus_store("words"), task="tagging", fusions=fusions, fusion_layers=(None, "-2:", "5,6"))
    assert [(spec.fusion, spec.fusion_layers) for spec in specs] == [
        (fusion, layers)
        for fusion in ("linear", "linear:gamma=no", "dwatt", "dwatt:scale=yes")
        for layers in (None, "5,6")
    ]
    assert len({spec.digest for spec in specs}) == 8


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"fusion": "linear:nrm=token"}, "unknown option of fusion 'linear' 'nrm'"),
        ({"fusion": "extra-layers:0"}, "there are no such extra layers"),
        ({"fusion_layers": "7"}, "these layers do not exist"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_any_run(
    changes: dict[str, Any], what: str, corpus_store: CorpusStore, tmp_path: Path, watch: Any
) -> None:
    store = corpus_store("words")
    sound = expand(store, task="tagging", fusions=("last",), epochs=(1,))[0]
    with pytest.raises(UsageError) as caught:
        fit(store, [sound, replace(sound, **changes)], RunsFolder(tmp_path / "runs"), watch)
    assert caught.value.what == what
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("rows", "task"),
    [
        ("tokens", "tagging"),
        pytest.param("words", "tagging", marks=pytest.mark.soak("products")),
        pytest.param("tokens", "classification", marks=pytest.mark.soak("products")),
    ],
)
def test_every_fusion_trains(rows: str, task: str, corpus_store: CorpusStore, tmp_path: Path, watch: Any) -> None:
    specs = expand(corpus_store(rows), task=task, fusions=EVERY, epochs=(4,), lrs=(1e-3,))
    records = fit(corpus_store(rows), specs, RunsFolder(tmp_path / "runs"), watch)
    assert {record["spec"]["fusion"].partition(":")[0] for record in records} == set(FUSIONS)
    assert [record["spec"]["fusion"] for record in records] == list(EVERY)
    for record in records:
        assert record["status"] == "finished"
        assert record["curve"][-1]["loss"] < record["curve"][0]["loss"]
        if record["layer_weights"] is None:
            assert record["largest_weight"] is None
        else:
            assert len(record["layer_weights"]) == len(record["layers"])
            assert sum(record["layer_weights"]) == pytest.approx(1, abs=1e-5)
            assert max(record["layer_weights"]) - 1e-6 <= record["largest_weight"] <= 1 + 1e-6
    temperatures = {r["spec"]["fusion"]: r["temperature"] for r in records if r["temperature"] is not None}
    assert temperatures == {
        "attention": 1.0, "dwatt": 1.0, "attention:scale=yes": 384**0.5, "dwatt:scale=yes": 384**0.5
    }  # fmt: skip


@pytest.mark.parametrize("fusion", ["attention", "depth-lstm", "dwatt:scale=yes"])
def test_chosen_layers_give_the_run_of_a_store_that_has_no_others(
    fusion: str, corpus_store: CorpusStore, partial: Store, tmp_path: Path, watch: Any
) -> None:
    outcomes = []
    for name, store in (("all", corpus_store("words")), ("partial", partial)):
        specs = expand(store, task="tagging", fusions=(fusion,), fusion_layers=("3,6",), epochs=(2,))
        outcomes += fit(store, specs, RunsFolder(tmp_path / name), watch)
    assert outcomes[0]["layers"] == outcomes[1]["layers"] == [3, 6]
    assert outcomes[0]["curve"] == outcomes[1]["curve"]
    assert outcomes[0]["layer_weights"] == outcomes[1]["layer_weights"]


def test_runs_that_end_together_have_the_weights_that_each_has_alone(
    corpus_store: CorpusStore, tmp_path: Path, watch: Any
) -> None:
    specs = expand(corpus_store("words"), task="tagging", fusions=("attention",), seeds=3, lrs=(1e-2,), epochs=(2,))
    together = fit(corpus_store("words"), specs, RunsFolder(tmp_path / "together"), watch)
    for spec, record in zip(specs, together, strict=True):
        (alone,) = fit(corpus_store("words"), [spec], RunsFolder(tmp_path / spec.digest), watch)
        assert record["layer_weights"] == pytest.approx(alone["layer_weights"], abs=1e-5)
        assert record["largest_weight"] == pytest.approx(alone["largest_weight"], abs=1e-5)
    assert len({round(record["layer_weights"][0], 4) for record in together}) == 3


def test_the_largest_weight_is_the_mean_over_rows_not_that_of_the_means(
    corpus_store: CorpusStore, stored: Any, tmp_path: Path, watch: Any
) -> None:
    store = corpus_store("words")
    specs = expand(store, task="tagging", fusions=("attention",), epochs=(3,))
    record = fit(store, specs, RunsFolder(tmp_path), watch)[0]
    query = load_file(tmp_path / specs[0].digest / "weights.safetensors")["fusion.query"].numpy()
    powers = np.exp(stored(store, "validation")[store["validation"].row_mask] @ query)  # [rows, layers]
    weights = powers / powers.sum(1, keepdims=True)
    assert record["layer_weights"] == pytest.approx(weights.mean(0).tolist(), abs=1e-5)
    assert record["largest_weight"] == pytest.approx(weights.max(1).mean(), abs=1e-5)
    assert record["largest_weight"] > max(record["layer_weights"]) + 1e-4


def test_another_fusion_in_the_sweep_changes_no_run(corpus_store: CorpusStore, tmp_path: Path, watch: Any) -> None:
    store = corpus_store("tokens")
    found = []
    for name, fusions in (("one", ("attention",)), ("both", ("extra-layers:1", "attention"))):
        specs = expand(store, task="tagging", fusions=fusions, epochs=(2,))
        found.append(fit(store, specs, RunsFolder(tmp_path / name), watch)[-1])
    assert found[0]["curve"] == found[1]["curve"]
    assert len(watch.said) == 2 * len(set(watch.said)) > 0  # each sweep says each thing once


def test_training_leaves_small_numbers_as_they_were(corpus_store: CorpusStore, tmp_path: Path, watch: Any) -> None:
    fit(
        corpus_store("words"),
        expand(corpus_store("words"), task="tagging", fusions=("dwatt",), epochs=(1,)),
        RunsFolder(tmp_path),
        watch,
    )
    assert float(torch.tensor(1e-39) * 1) > 0
