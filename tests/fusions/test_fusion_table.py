"""Names of fusions, and the layers they read of those a store holds."""

from __future__ import annotations

import pytest
import torch

from fusionkit.errors import UsageError
from fusionkit.fusions import build_fusion, fusion_layers

ALL = tuple(range(7))  # an encoder of six layers, everything stored


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("last", (6,)),
        ("linear", (0, 1, 2, 3, 4, 5, 6)),
        ("attention", (0, 1, 2, 3, 4, 5, 6)),
        ("concat", (1, 2, 3, 4, 5, 6)),
        ("layer:0", (0,)),
        ("layer:4", (4,)),
        ("layer:6", (6,)),
        ("layer:-1", (6,)),
        ("layer:-3", (4,)),
        ("layer:-7", (0,)),
    ],
)
def test_default_layers_are_the_papers(name: str, expected: tuple[int, ...]) -> None:
    assert fusion_layers(name, ALL, 7) == expected


@pytest.mark.parametrize(
    ("name", "stored", "expected"),
    [
        ("linear", (0, 3, 6), (0, 3, 6)),
        ("attention", (2, 5), (2, 5)),
        ("concat", (0, 3, 6), (3, 6)),
        ("last", (3, 6), (6,)),
        ("layer:3", (3, 6), (3,)),
        ("layer:-1", (3, 6), (6,)),
    ],
)
def test_of_a_store_with_some_layers_a_fusion_reads_those_it_wants(
    name: str, stored: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert fusion_layers(name, stored, 7) == expected


@pytest.mark.parametrize("name", ["last", "linear", "attention", "concat", "layer:0", "layer:-1"])
def test_an_encoder_that_is_embeddings_alone_still_has_a_layer(name: str) -> None:
    assert fusion_layers(name, (0,), 1) == (0,)


@pytest.mark.parametrize(
    ("name", "stored", "wanted"),
    [
        ("last", (0, 1, 5), "layer 6"),
        ("layer:2", (0, 6), "layer 2"),
        ("concat", (0,), "layer 1, 2, 3, 4, 5, 6"),
    ],
)
def test_a_store_without_its_layers_is_refused_with_both_lists(name: str, stored: tuple[int, ...], wanted: str) -> None:
    with pytest.raises(UsageError, match=f"no layer that fusion '{name}' reads") as caught:
        fusion_layers(name, stored, 7)
    assert caught.value.expected == wanted
    assert caught.value.received == "layers " + ", ".join(map(str, stored))
    assert caught.value.remedy is not None


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("atention", "attention"),
        ("liner", "linear"),
        ("conact", "concat"),
        ("lst", "last"),
        ("layers", "layer:k"),
        ("Linear", "linear"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    for refused in (lambda: fusion_layers(name, ALL, 7), lambda: build_fusion(name, 7, 4)):
        with pytest.raises(UsageError, match=f"unknown fusion '{name}'") as caught:
            refused()
        assert caught.value.remedy == f"did you mean {nearest!r}?"
        assert caught.value.expected == "one of attention, concat, last, layer:k, linear"
        assert caught.value.exit_code == 2


def test_layer_without_its_number_is_refused() -> None:
    with pytest.raises(UsageError, match="'layer' is not complete") as caught:
        build_fusion("layer", 1, 4)
    assert caught.value.expected == "layer:k, e.g. layer:3 or layer:-1"


@pytest.mark.parametrize("name", ["layer:7", "layer:-8", "layer:99", "layer:two", "layer:1.5", "layer:"])
def test_a_layer_the_encoder_does_not_have_is_refused_with_the_range(name: str) -> None:
    with pytest.raises(UsageError, match="this layer does not exist") as caught:
        fusion_layers(name, ALL, 7)
    assert caught.value.expected == "layer:k with k from -7 to 6"
    assert caught.value.received == name


@pytest.mark.parametrize("name", ["last:1", "linear:3", "concat:256", "attention:", "attention:scale"])
def test_an_argument_on_a_fusion_that_takes_none_is_refused(name: str) -> None:
    kind = name.partition(":")[0]
    with pytest.raises(UsageError, match=f"fusion '{kind}' takes no argument") as caught:
        build_fusion(name, 7, 4)
    assert (caught.value.expected, caught.value.received) == (kind, name)


@pytest.mark.parametrize(("name", "layer"), [("last", 6), ("layer:0", 0), ("layer:4", 4), ("layer:-2", 5)])
def test_a_fusion_of_one_layer_gives_that_layer_of_the_encoder(name: str, layer: int) -> None:
    states = torch.arange(2 * 7 * 3).reshape(2, 7, 3).float()
    layers = fusion_layers(name, ALL, 7)
    fused = build_fusion(name, len(layers), 3)(states[:, list(layers)])
    assert torch.equal(fused, states[:, layer])
