"""An estimator whose method trains through the encoder reads texts, and learns what ``fusionkit fit --method`` does."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.base import clone

from fusionkit import FusionClassifier
from fusionkit.errors import EncoderError, UsageError
from fusionkit.store import Store


@pytest.fixture(scope="module")
def texts(store: Store) -> list[str]:
    return [" ".join(words) for words in store["train"].examples["tokens"]]


def test_it_learns_what_fit_learns(
    store: Store, texts: list[str], train: Callable[..., dict[str, Any]], model_folder: Path
) -> None:
    record = train(
        store, methods=["houlsby:4"], task="classification", label="label", head="classifier", pool="mean",
        fusions=["attention"], epochs=(1,), lrs=(1e-2,), encoder_lrs=(3e-3,), dropout=0.1,
    )  # fmt: skip
    found = FusionClassifier(
        "attention", method="houlsby:4", encoder=str(model_folder), encoder_lr=3e-3, lr=1e-2, epochs=1, batch_size=8,
        dropout=0.1,
    )  # fmt: skip
    labels = np.array(store["train"].examples["label"])
    clone(found).fit(np.array(texts), labels)  # an array of texts, too
    before = torch.get_rng_state()
    found.fit(texts, labels)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.spec_.warmup == record["spec"]["warmup"] == 0.1  # the method's own
    for name, tensor in load_file(record["folder"] / "weights.safetensors").items():
        torch.testing.assert_close(found.model_.state_dict()[name], tensor, rtol=0, atol=0, msg=name)
    trained = dict(found.encoder_.model.named_parameters())
    for name, tensor in load_file(record["folder"] / "delta.safetensors").items():
        torch.testing.assert_close(trained[name].detach(), tensor, rtol=0, atol=0, msg=name)
    assert found.score(texts, labels) > 0.5
    assert found.predict_proba(texts[:3]).shape == (3, 2)


@pytest.mark.parametrize("method", ["prompt:4", "diff-prune", "full"])
def test_a_fitted_one_can_be_pickled(texts: list[str], store: Store, model_folder: Path, method: str) -> None:
    found = FusionClassifier("last", method=method, encoder=str(model_folder), max_steps=3, encoder_lr=1e-2)
    found.fit(texts, np.array(store["train"].examples["label"]))
    kept = pickle.loads(pickle.dumps(found))
    np.testing.assert_allclose(kept.predict_proba(texts), found.predict_proba(texts), rtol=1e-6)
    kept = pickle.loads(pickle.dumps(kept))
    np.testing.assert_allclose(kept.predict_proba(texts), found.predict_proba(texts), rtol=1e-6)
    content = pickle.dumps(found)
    found.set_params(encoder="minilm")
    with pytest.raises(EncoderError, match="not the encoder that this estimator was trained with"):
        pickle.loads(pickle.dumps(found))
    assert pickle.loads(content).encoder == str(model_folder)
    states, labels = np.zeros((len(texts), 3)), np.arange(len(texts)) % 2
    found.set_params(method="frozen", encoder=None, encoder_lr=None).fit(states, labels)
    assert pickle.loads(pickle.dumps(found)).n_features_in_ == 3


def test_a_long_text_is_cut_so_that_a_prompt_fits(texts: list[str], store: Store, model_folder: Path) -> None:
    found = FusionClassifier("last", method="prompt:4", encoder=str(model_folder), max_steps=1)
    found.fit(texts, np.array(store["train"].examples["label"]))
    long, longer = found.predict_proba(["snow " * 26, "snow " * 40])  # two special sub-tokens beside 26 words, of 32
    np.testing.assert_allclose(long, longer, atol=1e-6)
    found.fit(["snow " * 40, *texts[1:]], np.array(store["train"].examples["label"]))  # so are the texts of training


def test_what_is_no_text_and_what_needs_no_training_is_refused(texts: list[str], model_folder: Path) -> None:
    labels = [number % 2 for number in range(len(texts))]
    with pytest.raises(ValueError, match="X is a list of texts"):
        FusionClassifier(method="full", encoder=str(model_folder)).fit(np.zeros((len(texts), 3)), labels)
    with pytest.raises(ValueError, match="`encoder` names what reads them"):
        FusionClassifier(method="full").fit(texts, labels)
    with pytest.raises(UsageError, match="text 1 cannot be encoded"):
        FusionClassifier(method="full", encoder=str(model_folder)).fit(["snow", "rain \ud800"], [0, 1])
    with pytest.raises(ValueError, match="a frozen encoder reads once"):
        FusionClassifier(encoder=str(model_folder)).fit(texts, labels)
