"""Each method under each fusion and head: it trains, and what it kept gives the recorded scores again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.errors import UsageError
from fusionkit.fit import expand
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.model.checkpoint import open_run
from fusionkit.fit.train.decisions import score
from fusionkit.fusions import FUSIONS
from fusionkit.heads import HEADS
from fusionkit.methods import METHODS
from fusionkit.store import Store, open_store
from fusionkit.tuning.trained import live_data_of
from tests.tuning.conftest import OTHERS, WORDS, encoded

Train = Callable[..., dict[str, Any]]
SMALL_METHODS = {name: name for name in METHODS} | {
    "top": "top:1", "houlsby": "houlsby:4", "lora": "lora:2", "prompt": "prompt:2", "prefix": "prefix:2",
    "pals": "pals:4,heads=2", "low-rank": "low-rank:4",
}  # fmt: skip
SMALL_FUSIONS = {name: name for name in FUSIONS} | {
    "layer": "layer:3", "extra-layers": "extra-layers:1", "ladder": "ladder:4", "flat": "flat:4",
    "projected-attention": "projected-attention:4", "projected-ffn": "projected-ffn:4",
}  # fmt: skip
# The task and the column of each head.
SERVES = {
    "classifier": ("classification", "label"),
    "linear-classifier": ("pair-classification", "label"),
    "tagger": ("tagging", "tags"),
    "linear-tagger": ("tagging", "tags"),
    "crf": ("tagging", "tags"),
    "bilstm-crf": ("tagging", "tags"),
    "regressor": ("regression", "number"),
    "linear-regressor": ("regression", "number"),
    "bcn": ("classification", "label"),
    "esim": ("pair-classification", "label"),
    "esim-regressor": ("regression", "number"),
    "sigmoid-classifier": ("multi-label", "kinds"),
}
# Each method meets each fusion and each head, and each fusion meets each head.
MEETINGS = [
    (method, fusion, [*SERVES][(i + j) % len(SERVES)])
    for i, method in enumerate(METHODS)
    for j, fusion in enumerate(FUSIONS)
]
OF_TWO = ("linear-classifier", "esim", "esim-regressor")  # heads over pairs, each text a sequence of its own


def _source(folder: Path, paired: bool) -> Path:
    folder.mkdir()
    rng = random.Random(0)
    for split, size in {"train": 16, "validation": 6, "test": 4}.items():
        rows = []
        for number in range(size):
            words = [WORDS[number % 3], *(rng.choice(OTHERS) for _ in range(rng.randint(2, 5)))]
            told: dict[str, Any] = {"label": ("no", "yes")[number % 2], "number": len(words) / 2}
            if paired:
                told |= {"sentence1": " ".join(words), "sentence2": " ".join(reversed(words))}
            else:
                told |= {"tokens": words, "tags": ["B-place", *["O"] * (len(words) - 1)], "kinds": words[:1]}
            rows.append(json.dumps(told))
        (folder / f"{split}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def sentences(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("sentences")
    return open_store(encoded(model_folder, _source(folder / "source", paired=False), folder / "store"))


@pytest.fixture(scope="module")
def pairs(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("pairs")
    source = _source(folder / "source", paired=True)
    return open_store(encoded(model_folder, source, folder / "store", words=False, pair_as="two"))


@pytest.mark.product
@pytest.mark.parametrize(("method", "fusion", "head"), MEETINGS)
def test_a_method_trains_under_a_fusion_and_a_head_and_gives_its_scores_again(
    sentences: Store, pairs: Store, train: Train, tmp_path: Path, method: str, fusion: str, head: str
) -> None:
    store, (task, label) = pairs if head in OF_TWO else sentences, SERVES[head]
    choices: dict[str, Any] = {"methods": [SMALL_METHODS[method]], "fusions": [SMALL_FUSIONS[fusion]], "epochs": (1,)}
    if method != "frozen":
        choices["from_layer"] = "none"  # stored states are rounded, and the scores are those of live ones
    record = train(store, tmp_path, **choices, task=task, label=label, head=head)
    run = open_run(record["folder"])
    context = SweepContext(store)
    assert (run.delta is None) == (method == "frozen")
    if run.delta is not None:
        data = live_data_of(run, context.data(run.spec), store)
        found = score(run.whole, data, data.validation, context.positions(run.spec))
        assert found == pytest.approx(record["scores"]["validation"], rel=1e-4)  # merged weights round otherwise


def test_every_head_has_a_case() -> None:
    assert set(SERVES) == set(HEADS) - {"lm-head", "lm-head-trained"}


@pytest.mark.parametrize(("method", "fusion", "lowest"), [("top:1", "layer:2", 3), ("prompt:2", "layer:0", 1)])
def test_a_fusion_below_all_that_a_method_changes_is_refused(
    sentences: Store, train: Train, method: str, fusion: str, lowest: int
) -> None:
    with pytest.raises(UsageError, match=f"reads no layer that the method {method} changes") as caught:
        train(sentences, methods=[method], fusions=[fusion], label="tags")
    assert f"layer {lowest}" in str(caught.value.expected)


def test_a_store_without_any_layer_that_a_method_changes_is_refused(
    sentences: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentences, "layers", (0, 1))
    with pytest.raises(UsageError, match="the method top:1 changes none of the stored layers"):
        expand(sentences, label="tags", fusions=["layer:*"], methods=["frozen", "top:1"])


def test_each_layer_alone_is_one_that_the_method_changes(sentences: Store) -> None:
    every = expand(sentences, label="tags", fusions=["layer:*"], methods=["frozen", "top:2", "prompt:2"])
    found = {method: [spec.fusion for spec in every if spec.method == method] for method in ("top:2", "prompt:2")}
    assert found == {"top:2": ["layer:2", "layer:3"], "prompt:2": ["layer:1", "layer:2", "layer:3"]}
    assert len(every) == 4 + 2 + 3
