"""A joint run over new texts: both columns, as the run answers over its store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fusionkit
from fusionkit.dataset.labels import load_joint
from fusionkit.errors import StoreError
from fusionkit.fit.model.checkpoint import open_run
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.train.decisions import predict_parts
from fusionkit.io.files import read_json, write_json
from fusionkit.predict import Label, Tags
from fusionkit.specs import RunSpec
from fusionkit.store import Store

MakeStore = Callable[..., Store]
FitRun = Callable[..., Path]
# Kind of rows, pool, fusion, head, one fusion or two.
CASES = [
    ("tokens", "cls", "attention", "classifier+tagger", "shared"),
    ("tokens", "mean", "linear", "classifier+crf", "each"),
    ("tokens", "max", "extra-layers:1", "classifier+linear-tagger", "shared"),
    ("words", "mean", "concat", "classifier+crf", "shared"),
    ("words-mean", "max", "layer:1", "classifier+tagger", "each"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_both_live_answers_are_the_stored_ones(make_store: MakeStore, fit_run: FitRun, case: tuple[str, ...]) -> None:
    rows, pool, fusion, head, joint_fusion = case
    store = make_store(rows)
    folder = fit_run(store, task="joint", pool=pool, fusions=[fusion], head=head, joint_fusion=joint_fusion)
    predictor = fusionkit.load(folder, device="cpu")
    assert list(predictor.runs) == ["label", "tags"]
    found = predictor.predict([list(words) for words in store["validation"].examples["tokens"]])

    [place] = folder.glob("*/run.json")
    record = read_json(place)
    spec = RunSpec.from_dict(record["spec"])
    data = load_joint(store, spec)
    assert {"intent": record["labels"], "slots": record["others"]["slots"]["labels"]} == {
        name: part.labels for name, part in data.parts.items()
    }
    classes = {name: len(part.labels) for name, part in data.parts.items()}
    model = model_of(spec, len(record["layers"]), store.hidden, classes)
    model.load_state_dict(load_file(place.parent / "weights.safetensors"))
    places = tuple(store.layers.index(layer) for layer in record["layers"])
    compared = 0
    answers = predict_parts(model, data, data.validation, places)
    for prediction, label, tags in zip(found, answers["intent"], answers["slots"], strict=True):
        told, tagged = prediction["label"], prediction["tags"]
        assert isinstance(told, Label)
        assert isinstance(tagged, Tags)
        assert (told.label, tagged.tags) == (label, tags)
        assert told.probabilities is not None
        assert sum(told.probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert (tagged.probabilities is None) == head.endswith("crf")
        compared += 1
    assert compared == 30

    with torch.inference_mode():
        batch = data.validation.batch(np.arange(30), places)
        likely = model.eval()(batch)["intent"].softmax(-1).numpy()
    shown = [list(p["label"].probabilities.values()) for p in found]  # type: ignore[union-attr]
    np.testing.assert_allclose(shown, likely, atol=1e-5)


def test_a_joint_run_stands_beside_others_under_its_own_name(make_store: MakeStore, fit_run: FitRun) -> None:
    store = make_store("tokens")
    folder = fit_run(store, task="joint", pool="mean", fusions=["linear"])
    fit_run(store, folder, task="tagging", fusions=["linear"])
    predictor = fusionkit.load(folder, device="cpu")
    names = list(predictor.runs)
    assert len(names) == 3
    assert set(names) == {"label", "tags/linear/with others", "tags/linear"}
    assert set(predictor.predict([["abc", "de"]])[0].heads) == set(names)


def test_a_joint_record_without_its_slots_is_damaged(make_store: MakeStore, fit_run: FitRun) -> None:
    folder = fit_run(make_store("words"), task="joint", pool="mean", fusions=["last"])
    [path] = folder.glob("*/run.json")
    assert list(open_run(path.parent).parts) == ["intent", "slots"]
    write_json(path, {**read_json(path), "others": {}})
    with pytest.raises(StoreError, match="is damaged"):
        open_run(path.parent)


def test_a_shared_fusion_runs_once_for_both_answers(make_store: MakeStore, fit_run: FitRun) -> None:
    store = make_store("tokens")
    for joint_fusion, wanted in (("shared", 1), ("each", 2)):
        folder = fit_run(store, task="joint", pool="mean", fusions=["linear"], joint_fusion=joint_fusion, seeds=2)
        predictor = fusionkit.load(folder, device="cpu")
        assert len(predictor.runs) == 4
        calls: list[int] = []
        for fusion in {id(run.model.fusion): run.model.fusion for run in predictor.runs.values()}.values():
            assert isinstance(fusion, torch.nn.Module)
            fusion.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        predictor.predict([["abc", "de"], ["fgh"]])
        assert len(calls) == 2 * wanted


def test_heads_that_read_different_rows_and_layers_do_not_disturb_each_other(
    make_store: MakeStore, fit_run: FitRun
) -> None:
    """What is made once for several heads is made from the same rows as for each alone."""
    store = make_store("tokens")
    folder = fit_run(store, task="joint", pool="cls", fusions=["attention", "layer:1", "extra-layers:1"])
    for choices in ({"task": "tagging"}, {"task": "classification", "pool": "cls"}, {"label": "label", "pool": "mean"}):
        fit_run(store, folder, fusions=["attention", "linear", "layer:1"], **choices)
    together = fusionkit.load(folder, device="cpu")
    assert len(together.runs) == 3 * 2 + 3 * 3
    texts = [["abc", "de", "f"], ["fghab"], ["a", "b"], ["\u200b", "cde"]]
    found = together.predict(texts)
    for path in folder.glob("*/run.json"):
        alone = fusionkit.load(path.parent, device="cpu")
        for name, run in alone.runs.items():
            [same] = [n for n, r in together.runs.items() if r.folder == run.folder and r.of_words == run.of_words]
            for one, other in zip(alone.predict(texts), found, strict=True):
                told, again = one[name], other[same]
                if isinstance(told, Label):
                    assert isinstance(again, Label)
                    assert told.probabilities == pytest.approx(again.probabilities, abs=1e-6)
                else:
                    assert isinstance(told, Tags)
                    assert isinstance(again, Tags)
                    assert told.tags == again.tags
