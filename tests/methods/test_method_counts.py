"""How many numbers each method trains, at the shapes of BERT-base and BERT-large, on the meta device."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers

from fusionkit.fusions import build_fusion
from fusionkit.methods import METHODS, apply, parse_method
from fusionkit.methods.structure import Structure, structure_of

LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
# Counted by hand: word, position and type embeddings with their norm, then the layers. No pooler.
BASE_ENCODER = (30522 + 512 + 2) * 768 + 2 * 768 + 12 * (12 * 768**2 + 13 * 768)
LARGE_ENCODER = (30522 + 512 + 2) * 1024 + 2 * 1024 + 24 * (12 * 1024**2 + 13 * 1024)
ONE_64 = 2 * 64 * 768 + 768 + 64


@cache
def bert(size: str) -> tuple[Any, Structure]:
    with torch.device("meta"):
        model: Any = transformers.BertModel(transformers.BertConfig(**(LARGE if size == "large" else {})))
    return model, structure_of(model)


def count(size: str, method: str) -> int:
    attached = parse_method(method).build().attach(*bert(size))
    try:
        return attached.count()
    finally:
        attached.detach()


@pytest.mark.parametrize(
    ("size", "method", "expected"),
    [
        ("base", "frozen", 0),
        ("base", "full", BASE_ENCODER),
        ("large", "full", LARGE_ENCODER),
        ("base", "top:2", 2 * 7_087_872),
        ("base", "top:12", 12 * 7_087_872),
        ("large", "bitfit", 270_336),
        ("large", "bitfit:embeddings=yes", 272_384 - 1024),  # the pooler's bias gets no gradient
        ("base", "bitfit:layers=-2:", 2 * 11 * 768),
        ("base", "lora:8,layers=-2:", 2 * 4 * 8 * 768),
        ("base", "ia3:layers=3:5", 2 * (2 * 768 + 3072)),
        ("base", "houlsby:64", 2_379_264),
        ("base", "houlsby:64,norms=yes", 2_379_264 + 36_864),
        ("base", "houlsby:64,share=layer", 1_189_632),
        ("base", "houlsby:64,share=layer,norms=yes", 1_226_496),
        ("large", "houlsby:256,share=layer", 12_613_632),
        ("base", "houlsby:64,share=three", 396_544),
        ("base", "houlsby:64,layers=-3:", 6 * ONE_64),
        ("base", "lora:8", 12 * 2 * 2 * 8 * 768),
        ("large", "lora:8", 24 * 2 * 2 * 8 * 1024),
        ("base", "ia3", 12 * (2 * 768 + 3072)),
        ("large", "prompt:20", 20 * 1024),
        ("base", "prefix:20", 2 * 12 * 768 * 20),
        ("large", "prefix:50", 2_457_600),
        ("base", "diff-prune", 2 * BASE_ENCODER),
        ("base", "pals:204,biases=no,encoder=frozen", 1_811_520),
        ("base", "pals:204,encoder=frozen", 1_819_836),
        ("base", "pals:84,share=no,biases=no,encoder=frozen", 1_802_304),
        ("base", "pals:84,share=no,encoder=frozen", 1_815_552),
        ("base", "pals:276,layers=-6:,biases=no,encoder=frozen", 1_795_104),
        ("base", "pals:276,layers=1:7,biases=no,encoder=frozen", 1_795_104),
        ("base", "pals:276,layers=-6:,encoder=frozen", 1_801_116),
        ("base", "pals:276,layers=1:7,encoder=frozen", 1_801_116),
        ("base", "pals:204", 1_819_836 + BASE_ENCODER),
        ("base", "low-rank:100,biases=no,encoder=frozen", 1_843_200),
        ("base", "low-rank:100,encoder=frozen", 1_853_616),
    ],
)
def test_exactly_so_many_numbers_train(size: str, method: str, expected: int) -> None:
    assert count(size, method) == expected


def test_other_counts_of_the_papers_follow_from_ours() -> None:
    assert BASE_ENCODER == 108_891_648
    assert LARGE_ENCODER == 334_092_288
    assert count("base", "houlsby:64,norms=yes") + 768 * 768 + 768 == 3_006_720  # with a first layer of the head
    assert round(1 + 8 * 1_811_520 / BASE_ENCODER, 2) == 1.13  # PALs of eight tasks
    assert count("large", "prefix:50") == 2 * 1_228_800  # keys alone, as Cao et al. count
    with_pooler = {name: p.numel() for name, p in bert("large")[0].named_parameters() if name.endswith("bias")}
    assert sum(with_pooler.values()) == 272_384
    with torch.device("meta"):
        extra: Any = build_fusion("extra-layers:1", 1, 768)
    assert sum(p.numel() for p in extra.parameters()) == 7_087_872  # a BERT layer on top


def test_diff_pruning_keeps_at_most_its_target(encoder: Any) -> None:
    attached = apply(encoder("bert"), parse_method("diff-prune:target=0.01"))
    weights = sum(p.numel() for name, p in attached.trainable.items() if name.endswith(".w"))
    with torch.no_grad():
        for name, parameter in attached.trainable.items():
            if name.endswith(".w"):
                parameter.add_(1)
    kept = attached.delta()
    assert sum(t.numel() for name, t in kept.items() if name.endswith(":values")) == int(0.01 * weights)


def test_every_method_of_the_table_is_counted() -> None:
    marks = test_exactly_so_many_numbers_train.pytestmark  # type: ignore[attr-defined]
    assert {parse_method(method).name for _, method, _ in marks[0].args[1]} == set(METHODS)
