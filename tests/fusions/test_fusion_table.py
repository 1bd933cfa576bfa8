"""The layers that fusions read of those a store holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusionkit.errors import UsageError
from fusionkit.fusions import build_fusion, fusion_layers

ALL = tuple(range(7))  # an encoder of six layers, everything stored


@pytest.mark.parametrize(
    ("name", "stored", "expected"),
    [
        ("linear", (0, 3, 6), (0, 3, 6)),
        ("linear:embeddings=no", (0, 3, 6), (3, 6)),
        ("attention", (2, 5), (2, 5)),
        ("concat", (0, 3, 6), (3, 6)),
        ("dwatt", (0, 3, 6), (3, 6)),
        ("last", (3, 6), (6,)),
        ("extra-layers:1", (3, 6), (6,)),
        ("layer:3", (3, 6), (3,)),
        ("layer:-1", (3, 6), (6,)),
    ],
)
def test_of_a_store_with_some_layers_a_fusion_reads_those_it_wants(
    name: str, stored: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert fusion_layers(name, stored, 7) == expected


@pytest.mark.parametrize(
    ("name", "chosen", "expected"),
    [
        ("linear", (3, 6), (3, 6)),
        ("linear:embeddings=no", (0, 3, 6), (3, 6)),
        ("attention", (2,), (2,)),
        ("concat", (0, 3), (0, 3)),  # also the embeddings, which it does not read by itself
        ("concat-affine", (0, 3), (0, 3)),
        ("dwatt", (0, 1, 2), (0, 1, 2)),
        ("element-wise", (1, 2), (1, 2)),
        ("mlp-weights", (1, 2), (1, 2)),
        ("depth-lstm", (1, 2), (1, 2)),
        ("extra-layers:1", (2, 4), (4,)),
        ("last", (5, 6), (6,)),
        ("layer:3", (3, 6), (3,)),
    ],
)
def test_chosen_layers_take_the_place_of_the_default_ones(
    name: str, chosen: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert fusion_layers(name, ALL, 7, chosen) == expected


def test_an_encoder_that_is_embeddings_alone_still_has_a_layer(case: Any) -> None:
    name = case.name
    alone = "layer:0" if name.startswith("layer") else name
    if name == "linear:embeddings=no":
        with pytest.raises(UsageError, match="no layer that fusion 'linear:embeddings=no' reads") as caught:
            fusion_layers(name, (0,), 1)
        assert caught.value.expected == "a layer above the embeddings"
    else:
        assert fusion_layers(alone, (0,), 1) == (0,)


@pytest.mark.parametrize(
    ("name", "stored", "wanted"),
    [
        ("last", (0, 1, 5), "layer 6"),
        ("layer:2", (0, 6), "layer 2"),
        ("extra-layers:1", (0, 1, 5), "layer 6"),
        ("concat", (0,), "layer 1, 2, 3, 4, 5, 6"),
    ],
)
def test_a_store_without_its_layers_is_refused_with_both_lists(name: str, stored: tuple[int, ...], wanted: str) -> None:
    with pytest.raises(UsageError, match=f"the store has no layer that fusion '{name}' reads") as caught:
        fusion_layers(name, stored, 7)
    assert caught.value.expected == wanted
    assert caught.value.received == "layers " + ", ".join(map(str, stored))
    assert caught.value.remedy is not None


@pytest.mark.parametrize(("name", "wanted"), [("last", "layer 6"), ("layer:2", "layer 2")])
def test_a_choice_that_a_fusion_of_one_layer_would_ignore_is_refused(name: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=f"--fusion-layers has no layer that fusion '{name}' reads") as caught:
        fusion_layers(name, ALL, 7, (0, 3))
    assert (caught.value.expected, caught.value.received) == (wanted, "layers 0, 3")


@pytest.mark.parametrize("name", ["layer:7", "layer:-8", "layer:99"])
def test_a_layer_the_encoder_does_not_have_is_refused_with_the_range(name: str) -> None:
    with pytest.raises(UsageError, match="this layer does not exist") as caught:
        fusion_layers(name, ALL, 7)
    assert caught.value.expected == "layer:k with k from -7 to 6"
    assert caught.value.received == name


@pytest.mark.parametrize(("name", "layer"), [("last", 6), ("layer:0", 0), ("layer:4", 4), ("layer:-2", 5)])
def test_a_fusion_of_one_layer_gives_that_layer_of_the_encoder(name: str, layer: int) -> None:
    states = torch.arange(2 * 7 * 3).reshape(2, 7, 3).float()
    layers = fusion_layers(name, ALL, 7)
    fusion: Any = build_fusion(name, len(layers), 3)
    assert torch.equal(fusion(states[:, list(layers)]), states[:, layer])
