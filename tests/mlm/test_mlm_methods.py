"""Masked language modelling through the encoder: the states of the masked sub-tokens computed from the store's ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers

from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.model.fused import build_model
from fusionkit.sources import Source
from fusionkit.specs import RunSpec
from fusionkit.store import Store, open_store
from fusionkit.store.lm_head_file import read_lm_head
from fusionkit.tuning.tokens import TokenSource

hf: Any = transformers
GetStore = Callable[[str], Store]


def scores_of(store: Store, runs: Path, watch: Any, **choices: Any) -> list[dict[str, Any]]:
    given = {"fusions": ["last"], "epochs": (1,), "batch_sizes": (8,), **choices}
    return fit(store, expand(store, **given), RunsFolder(runs), watch)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_an_encoder_that_learns_nothing_has_the_scores_of_the_stored_states(
    kind: str, store: GetStore, tmp_path: Path, watch: Any
) -> None:
    made = store(kind)
    (frozen,) = scores_of(made, tmp_path / "frozen", watch)
    (full,) = scores_of(made, tmp_path / "full", watch, methods=["full"], encoder_lrs=(1e-12,), weight_decay=0.0)
    for split in ("validation", "test"):
        assert full["scores"][split]["perplexity"] == pytest.approx(frozen["scores"][split]["perplexity"], rel=1e-5)
        assert full["scores"][split]["accuracy"] == pytest.approx(frozen["scores"][split]["accuracy"])


def test_the_loss_of_a_step_is_the_model_s_own(
    store: GetStore, sequences: Any, checkpoint: Any, tmp_path: Path, watch: Any
) -> None:
    """One step over all of train, without dropout: AutoModelForMaskedLM's loss on the same ids."""
    made, model = store("bert"), hf.AutoModelForMaskedLM.from_pretrained(checkpoint("bert")).eval()
    nats, masked = 0.0, 0
    for ids, labels in sequences(made, "train"):
        if count := int((labels != -100).sum()):
            with torch.no_grad():
                loss = model(torch.from_numpy(ids)[None], labels=torch.from_numpy(labels)[None]).loss
            nats, masked = nats + float(loss) * count, masked + count
    how: dict[str, Any] = {"methods": ["full"], "encoder_lrs": (1e-12,), "batch_sizes": (1000,), "encoder_dropout": 0.0}
    for pieces in (1, 3):
        (record,) = scores_of(made, tmp_path / str(pieces), watch, accumulate=pieces, **how)
        assert record["curve"][0]["loss"] == pytest.approx(nats / masked, rel=1e-5)


@pytest.mark.parametrize("method", ["full", "top:1", "bitfit", "houlsby:4", "lora:2"])
def test_training_the_encoder_lowers_the_perplexity(method: str, store: GetStore, tmp_path: Path, watch: Any) -> None:
    made = store("bert")
    (frozen,) = scores_of(made, tmp_path / "frozen", watch)
    (record,) = scores_of(made, tmp_path / "runs", watch, methods=[method], encoder_lrs=(5e-3,), epochs=(4,))
    assert record["validation_score"] < frozen["validation_score"]
    assert (record["head_parameters"], record["spec"]["from_layer"]) == (0, None)


def test_a_new_layer_reads_the_sub_tokens_between_the_masked_ones(
    store: GetStore, sequences: Any, checkpoint: Any, tmp_path: Path, watch: Any
) -> None:
    """The perplexity of the encoder's states under a new layer that has learned next to nothing, computed by hand."""
    made, encoder = store("bert"), hf.AutoModel.from_pretrained(checkpoint("bert")).eval()
    how: dict[str, Any] = {"fusions": ["extra-layers:1"], "lrs": (1e-12,), "encoder_lrs": (1e-12,)}
    (record,) = scores_of(made, tmp_path / "runs", watch, methods=["full"], **how)
    head = read_lm_head(made.path, made.manifest)
    spec = RunSpec.from_dict(record["spec"])
    model = build_model(spec, 1, 16, 0, 1, head).eval()
    nats: list[float] = []
    for ids, labels in sequences(made, "test"):
        at = torch.from_numpy(labels)
        with torch.no_grad():
            states = encoder(torch.from_numpy(ids)[None]).last_hidden_state[0][:, None]  # [length, 1, d]
            scores = model(states, torch.tensor([0, len(states)]))[at != -100]
        nats += torch.nn.functional.cross_entropy(scores, at[at != -100], reduction="none").tolist()
    assert record["scores"]["test"]["cross_entropy"] == pytest.approx(np.mean(nats), rel=1e-4)
    with pytest.raises(UsageError, match="the store has those of its masked sub-tokens alone"):
        expand(made, fusions=["extra-layers:1"])


@pytest.mark.parametrize("fusion", ["extra-layers:1", "projected-attention:4", "ladder:2", "flat:2"])
def test_whole_texts_are_read_in_any_draw_and_any_pieces(
    fusion: str, store: GetStore, tmp_path: Path, watch: Any
) -> None:
    made = store("roberta")
    how: dict[str, Any] = {"methods": ["houlsby:2"], "fusions": [fusion], "shots": (12,), "validate_on": 9}
    how |= {"encoder_dropout": 0.0, "epochs": (2,)}
    (whole,) = scores_of(made, tmp_path / "whole", watch, **how)
    (pieces,) = scores_of(made, tmp_path / "pieces", watch, accumulate=3, **how)
    assert len(whole["draw"]) == 12
    # A ladder's own dropout draws other numbers in pieces, so its losses are only near each other.
    near = 0.1 if fusion.startswith(("ladder", "flat")) else 1e-4
    for one, other in zip(whole["curve"], pieces["curve"], strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=near)


def test_pairs_as_two_are_texts_of_their_own(encoded: Any, tmp_path: Path, watch: Any) -> None:
    pairs = {"sentence1": ["abc def", "bad cab"] * 6, "sentence2": ["a bee fed", "abc def"] * 6}
    splits = {name: pa.table(pairs) for name in ("train", "validation", "test")}
    encoded(Source("pairs", splits), tmp_path / "s", pair_as="two", mask_share=0.5)
    made = open_store(tmp_path / "s")
    (frozen,) = scores_of(made, tmp_path / "frozen", watch)
    (full,) = scores_of(made, tmp_path / "full", watch, methods=["full"], encoder_lrs=(1e-12,), weight_decay=0.0)
    assert full["scores"]["test"]["perplexity"] == pytest.approx(frozen["scores"]["test"]["perplexity"], rel=1e-5)


def test_a_row_is_the_sub_token_that_is_masked(store: GetStore) -> None:
    made = store("bert")
    for name in made.splits:
        split = made[name]
        tokens = TokenSource(made).of(split.hidden_states)
        assert tokens.of_rows is not None
        assert np.array_equal(
            np.bincount(tokens.sequences_of(tokens.of_rows), minlength=split.sequences), np.diff(split.row_offsets)
        )


def test_the_rows_between_masked_ones_are_not_stored_to_start_from(store: GetStore) -> None:
    with pytest.raises(UsageError, match="cannot start from layer 2 of masked sub-tokens"):
        expand(store("bert"), fusions=["last"], methods=["top:1"], from_layer=2)
