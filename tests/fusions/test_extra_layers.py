"""Extra layers against BERT's own, and what they make of examples of different lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from fusionkit.errors import UsageError
from fusionkit.fusions import build_fusion
from fusionkit.fusions.transformer_layer import TransformerLayer

# BERT's name for each of our parts.
PARTS = {
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
    "out": "attention.output.dense", "attention_norm": "attention.output.LayerNorm", "up": "intermediate.dense",
    "down": "output.dense", "norm": "output.LayerNorm",
}  # fmt: skip


def bert_layer(ours: TransformerLayer, hidden: int, heads: int) -> Any:
    """BERT's layer with our weights."""
    config = BertConfig(hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden)
    config._attn_implementation = "eager"
    theirs: Any = BertLayer(config).double().eval()  # type: ignore[no-untyped-call]
    state = ours.state_dict()
    theirs.load_state_dict(
        {f"{PARTS[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": state[name] for name in state}
    )
    return theirs


@pytest.mark.parametrize(("hidden", "heads"), [(128, 2), (192, 3), (96, 1), (312, 4), (40, 1)])
def test_a_layer_is_berts_with_heads_of_64_or_a_little_more(hidden: int, heads: int) -> None:
    torch.manual_seed(1)
    fusion: Any = build_fusion("extra-layers:1", 1, hidden)
    fusion = fusion.double()
    with torch.no_grad():
        for parameter in fusion.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # the biases too
    theirs = bert_layer(fusion.layers[0], hidden, heads)
    lengths = [4, 7, 1]
    states = torch.randn(12, 1, hidden, dtype=torch.float64)
    expected: list[Tensor] = []
    with torch.no_grad():
        for rows in torch.split(states[:, 0], lengths):
            found = theirs(rows[None])
            expected += (found[0] if isinstance(found, tuple) else found).reshape(len(rows), hidden)
        found = fusion(states, torch.tensor([0, 4, 11, 12]))
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-10, atol=1e-10)


def test_fresh_weights_are_berts() -> None:
    torch.manual_seed(0)
    fusion: Any = build_fusion("extra-layers:2", 1, 256)
    for name, parameter in fusion.named_parameters():
        if "norm" in name:
            assert torch.equal(parameter, torch.full_like(parameter, float(name.endswith("weight"))))
        elif name.endswith("bias"):
            assert not parameter.any()
        else:
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.02)
            assert abs(float(parameter.detach().mean())) < 2e-4


def test_the_order_of_an_examples_rows_does_not_matter() -> None:
    torch.manual_seed(2)
    fusion: Any = build_fusion("extra-layers:2", 1, 16)
    states, order, offsets = torch.randn(5, 1, 16), torch.tensor([3, 0, 4, 1, 2]), torch.tensor([0, 5])
    torch.testing.assert_close(fusion(states[order], offsets), fusion(states, offsets)[order])


def test_examples_without_rows_leave_all_gradients_finite() -> None:
    torch.manual_seed(3)
    fusion: Any = build_fusion("extra-layers:2", 1, 16)
    fusion(torch.randn(4, 1, 16), torch.tensor([0, 0, 3, 3, 4, 4])).square().sum().backward()
    gradients = [parameter.grad for parameter in fusion.parameters()]
    assert len(gradients) == 32
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("n", [0, -1])
def test_fewer_than_one_layer_is_refused(n: int) -> None:
    with pytest.raises(UsageError, match="no such extra layers") as caught:
        build_fusion(f"extra-layers:{n}", 1, 16)
    assert (caught.value.expected, caught.value.received) == ("extra-layers:n with n from 1 to 64", f"extra-layers:{n}")
