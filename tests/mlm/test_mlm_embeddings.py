"""An LM head made of the encoder's embeddings, for a checkpoint that has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from fusionkit.bundled import minilm_folder
from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.lm_head import lm_scores
from fusionkit.sources import Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import open_store
from fusionkit.store.lm_head_file import read_lm_head

hf: Any = transformers


def test_a_head_of_embeddings_is_trained_unless_told_otherwise(source: Source, tmp_path: Path, watch: Any) -> None:
    """MiniLM has no LM head. At first a score is the product of a state of length 1 and an embedding."""
    few = Source("letters", {name: rows.take(np.arange(12)) for name, rows in source.splits.items()})
    spec = EncodeSpec(task="mlm", lm_head="embeddings", layers="0,6", dtype="float32")
    encode(few, guess_columns(few), tmp_path / "s", spec, load_encoder("minilm", device="cpu", lm_head="embeddings"))
    made = open_store(tmp_path / "s")
    states, table = torch.tensor(made["test"].hidden_states[:5])[:, 1], minilm_embeddings()
    head = read_lm_head(made.path, made.manifest)
    scores = lm_scores(states, head.weights, head.activation, head.layer_norm_eps)
    centred = states - states.mean(1, keepdim=True)
    torch.testing.assert_close(scores, torch.nn.functional.normalize(centred) @ table.T, rtol=1e-4, atol=1e-4)
    specs = expand(made, fusions=["last"], lrs=(1e-3,), epochs=(2,), batch_sizes=(4,))
    (record,) = fit(made, specs, RunsFolder(tmp_path / "runs"), watch)
    assert record["spec"]["head"] == "lm-head-trained"
    first, second = (point["loss"] for point in record["curve"])
    assert second < first < 1.1 * np.log(len(table))
    assert expand(made, fusions=["linear"], head="lm-head")[0].head == "lm-head"


def minilm_embeddings() -> torch.Tensor:
    model: Any = hf.AutoModel.from_pretrained(minilm_folder())
    table: torch.Tensor = model.get_input_embeddings().weight.detach()
    return table
