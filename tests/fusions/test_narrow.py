"""Ladder and flat: the layer beside PyTorch's own, dropout, and what they make of short examples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionkit.errors import UsageError
from fusionkit.fusions import build_fusion
from fusionkit.fusions.example_attention import Lines
from fusionkit.fusions.transformer_layer import TransformerLayer

OFFSETS = torch.tensor([0, 5, 6, 13])


def pytorchs(ours: TransformerLayer, width: int, dropout: float) -> nn.TransformerEncoderLayer:
    """PyTorch's layer with our weights."""
    theirs = nn.TransformerEncoderLayer(width, ours.heads, 4 * width, dropout, "gelu", 1e-12, batch_first=True).double()
    state = ours.state_dict()
    parts = {
        "out": "self_attn.out_proj",
        "attention_norm": "norm1",
        "up": "linear1",
        "down": "linear2",
        "norm": "norm2",
    }
    found = {f"{name}.{end}": state[f"{part}.{end}"] for part, name in parts.items() for end in ("weight", "bias")}
    for end in ("weight", "bias"):
        joined = torch.cat([state[f"{part}.{end}"] for part in ("query", "key", "value")])
        found[f"self_attn.in_proj_{end}"] = joined
    theirs.load_state_dict(found)
    return theirs


@pytest.mark.parametrize(("width", "heads"), [(48, 4), (96, 8), (128, 8), (16, 1)])
def test_a_narrow_layer_is_pytorchs_with_heads_of_12_or_a_little_more(width: int, heads: int) -> None:
    torch.manual_seed(0)
    fusion: Any = build_fusion("flat:2", 3, 2 * width)
    ours = fusion.layer.double().eval()
    assert ours.heads == heads
    theirs = pytorchs(ours, width, 0.1).eval()
    rows = torch.randn(13, width, dtype=torch.float64)
    expected = torch.cat([theirs(own[None])[0] for own in torch.tensor_split(rows, OFFSETS[1:-1])])
    torch.testing.assert_close(ours(rows, Lines(OFFSETS, heads)), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "count"), [("ladder:8", 317_814), ("ladder:4", 967_014), ("flat:8", 176_160)])
def test_over_minilm_they_have_so_many_weights(name: str, count: int) -> None:
    fusion: Any = build_fusion(name, 7, 384)
    assert sum(p.numel() for p in fusion.parameters()) == count


@pytest.mark.parametrize("name", ["ladder:8", "flat:8"])
def test_dropout_takes_a_tenth_of_what_is_added_and_nothing_when_scored(name: str) -> None:
    torch.manual_seed(1)
    fusion: Any = build_fusion(name, 3, 96)
    states = torch.randn(13, 3, 96)
    dropped: list[float] = []

    def seen(module: nn.Module, given: tuple[Tensor], found: Tensor) -> None:
        dropped.append(float((found == 0).float().mean()))

    hooked = [m.register_forward_hook(seen) for m in fusion.modules() if isinstance(m, nn.Dropout)]
    for _ in range(50):
        fusion(states, OFFSETS)
    assert len(hooked) == (2 if name == "ladder:8" else 1)
    assert len(dropped) == 100 * len(hooked)
    assert sum(dropped) / len(dropped) == pytest.approx(0.1, abs=0.01)
    fusion.eval()
    assert torch.equal(fusion(states, OFFSETS), fusion(states, OFFSETS))


@pytest.mark.parametrize("name", ["ladder:2", "flat:2"])
def test_a_row_alone_is_what_attention_to_itself_gives(name: str) -> None:
    torch.manual_seed(2)
    fusion: Any = build_fusion(name, 3, 32)
    fusion = fusion.double().eval()
    states = torch.randn(1, 3, 32, dtype=torch.float64)
    found = fusion(states, torch.tensor([0, 1]))

    def layer(own: TransformerLayer, x: Tensor) -> Tensor:
        a = own.attention_norm(x + own.out(own.value(x)))
        return own.norm(a + own.down(nn.functional.gelu(own.up(a))))  # type: ignore[no-any-return]

    if name == "flat:2":
        s = layer(fusion.layer, fusion.down(states.flatten(1)) / 3**0.5)
    else:
        s = fusion.downs[0](states[:, 0])
        for i in (1, 2):
            s = layer(fusion.layers[i - 1], 0.5 * fusion.downs[i](states[:, i]) + 0.5 * s)
    torch.testing.assert_close(found, states[:, -1] + fusion.up(s), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["ladder:2", "flat:2"])
def test_examples_without_rows_leave_all_gradients_finite(name: str) -> None:
    torch.manual_seed(3)
    fusion: Any = build_fusion(name, 3, 48)
    fusion(torch.randn(4, 3, 48), torch.tensor([0, 0, 3, 3, 4, 4])).square().sum().backward()
    gradients = [parameter.grad for parameter in fusion.parameters()]
    assert len(gradients) > 16
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", ["ladder", "flat"])
@pytest.mark.parametrize(
    ("r", "told"), [(0, "cannot be so wide"), (-2, "cannot be so wide"), (17, "cannot be so narrow")]
)
def test_a_width_that_is_none_is_refused(name: str, r: int, told: str) -> None:
    with pytest.raises(UsageError, match=f"{name} {told}") as caught:
        build_fusion(f"{name}:{r}", 3, 16)
    expected = f"{name}:r with r from 1 to 16, the width of the states"
    assert (caught.value.expected, caught.value.received) == (expected, f"{name}:{r}")
