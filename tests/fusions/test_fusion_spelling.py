"""How fusions and their options are written, and what is said to those that are misspelt."""

from __future__ import annotations

from typing import Any

import pytest

from fusionkit.errors import UsageError
from fusionkit.fusions import (
    FUSIONS,
    REGISTRY,
    build_fusion,
    fusion_class,
    fusion_layers,
    fusion_name,
    sees_examples,
)
from fusionkit.options.spelling import usage


def test_a_layer_that_is_no_number_is_told_of_the_sweep_over_layers() -> None:
    with pytest.raises(UsageError) as told:
        fusion_name("layer:x")
    assert "layer:*" in str(told.value.remedy)


NAMES = "one of " + ", ".join(sorted(text.partition("[")[0] for text in REGISTRY.usages.values()))
LINEAR = "linear[:gamma=yes|no,norm=none|token,embeddings=yes|no]"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("last", "last"),
        ("layer:3", "layer:3"),
        ("layer:k=3", "layer:3"),
        ("layer:-02", "layer:-2"),
        ("extra-layers:2", "extra-layers:2"),
        ("linear:gamma=yes", "linear"),
        ("linear:norm=none,embeddings=yes,gamma=yes", "linear"),
        ("linear:norm=token,gamma=no", "linear:gamma=no,norm=token"),
        ("linear:embeddings=no,norm=token,gamma=no", "linear:gamma=no,norm=token,embeddings=no"),
        ("dwatt:scale=yes", "dwatt:scale=yes"),
        ("dwatt:scale=no", "dwatt"),
    ],
)
def test_a_fusion_has_one_spelling(text: str, name: str) -> None:
    assert fusion_name(text) == name
    assert fusion_name(name) == name


def test_how_a_fusion_may_be_written_is_read_off_its_signature() -> None:
    """And help, which imports no fusion, reads the same off its file."""
    found = {name: usage(name, fusion_class(name)) for name in FUSIONS}
    assert REGISTRY.usages == found
    assert [found[name] for name in ("last", "layer", "linear", "dwatt", "extra-layers")] == [
        "last", "layer:k", LINEAR, "dwatt[:scale=yes|no]", "extra-layers:n",
    ]  # fmt: skip


def test_options_reach_the_constructor() -> None:
    fusion: Any = build_fusion("linear:norm=token,gamma=no,embeddings=no", 7, 4)
    assert (fusion.norm, fusion.gamma) == ("token", None)
    assert len(build_fusion("extra-layers:3", 1, 4).layers) == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("atention", "attention"),
        ("liner", "linear"),
        ("conact", "concat"),
        ("lst", "last"),
        ("layers", "layer:k"),
        ("extra-layer:2", "extra-layers:n"),
        ("dwat:scale=yes", "dwatt"),
        ("Linear", "linear"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    for refused in (
        lambda: fusion_layers(name, (0, 1), 2),
        lambda: build_fusion(name, 7, 4),
        lambda: fusion_name(name),
    ):
        with pytest.raises(UsageError, match=f"unknown fusion '{name.partition(':')[0]}'") as caught:
            refused()
        assert caught.value.remedy == f"did you mean {nearest!r}?"
        assert caught.value.expected == NAMES
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "what", "expected", "remedy"),
    [
        ("linear:nrm=token", "unknown option of fusion 'linear' 'nrm'", "one of embeddings, gamma, norm", "'norm'"),
        ("linear:norm=tokn", "unknown norm of fusion 'linear' 'tokn'", "one of none, token", "'token'"),
        ("linear:gamma=n", "unknown gamma of fusion 'linear' 'n'", "one of no, yes", "'no'"),
        ("dwatt:scales=yes", "unknown option of fusion 'dwatt' 'scales'", "one of scale", "'scale'"),
        ("attention:scale=", "unknown scale of fusion 'attention' ''", "one of no, yes", ""),
        ("attention:scale", "'scale' is no option of fusion 'attention'", "attention[:scale=yes|no]", ""),
        ("linear:", "'' is no option of fusion 'linear'", LINEAR, ""),
        ("linear:gamma=no,", "'' is no option of fusion 'linear'", LINEAR, ""),
        ("linear:gamma=no,gamma=no", "gamma of fusion 'linear' is given twice", LINEAR, ""),
        ("layer:3,k=3", "k of fusion 'layer' is given twice", "layer:k", ""),
        ("layer:3,4", "'4' is no option of fusion 'layer'", "layer:k", ""),
        ("layer", "fusion 'layer' is not complete", "layer:k", ""),
        ("extra-layers", "fusion 'extra-layers' is not complete", "extra-layers:n", ""),
        ("layer:", "k of fusion 'layer' is no integer", "layer:k", ""),
        ("layer:two", "k of fusion 'layer' is no integer", "layer:k", ""),
        ("extra-layers:1.5", "n of fusion 'extra-layers' is no integer", "extra-layers:n", ""),
        ("last:1", "fusion 'last' takes no options", "last", ""),
        ("concat-affine:width=256", "fusion 'concat-affine' takes no options", "concat-affine", ""),
        ("depth-lstm:", "fusion 'depth-lstm' takes no options", "depth-lstm", ""),
    ],
)
def test_options_that_do_not_fit_are_refused(text: str, what: str, expected: str, remedy: str) -> None:
    for use in (fusion_name, sees_examples, lambda name: build_fusion(name, 7, 4)):
        with pytest.raises(UsageError) as caught:
            use(text)
        assert (caught.value.what, caught.value.expected) == (what, expected)
        assert remedy in (caught.value.remedy or "")
