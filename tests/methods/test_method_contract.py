"""What every method keeps with every encoder: the table of methods times that of architectures.

``kind`` and ``name`` go over all pairs that are possible (conftest.py). The gate has each architecture and each method
with its options, the soak every pair.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from fusionkit.errors import UsageError
from fusionkit.methods import METHODS, apply, parse_method
from fusionkit.methods.attached import Attached

Encoder = Callable[[str], Any]
Batch = Callable[..., dict[str, Tensor]]


def states_of(model: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The hidden states of real sub-tokens, ``[real, hidden]`` each."""
    real = inputs["attention_mask"].bool()
    cache = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    states = model(**inputs, **cache, output_hidden_states=True).hidden_states
    assert {tuple(layer.shape[:2]) for layer in states} == {tuple(real.shape)}
    return [layer[real] for layer in states]


def moved(attached: Attached) -> Attached:
    """As after some training: everything that trains is a little elsewhere."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in attached.trainable.items():
            if not name.endswith(".location"):
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.05)
    attached.train(False)
    return attached


def loss_of(attached: Attached, inputs: dict[str, Tensor]) -> Tensor:
    draw = torch.Generator().manual_seed(3)
    states = torch.stack(states_of(attached.model, inputs))  # [layers, real, hidden]
    loss = (states * torch.randn(states.shape, generator=draw)).sum()
    return loss if attached.penalty is None else loss + attached.penalty()


def gradients(attached: Attached, *passes: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those of a step with one or several passes."""
    torch.manual_seed(4)  # of dropout and gates
    attached.train()
    torch.autograd.backward(sum((loss_of(attached, inputs) for inputs in passes), start=torch.zeros(())))
    return {name: p.grad.clone() for name, p in attached.model.named_parameters() if p.grad is not None}


def test_gradients_reach_the_declared_parameters_alone(encoder: Encoder, batch: Batch, kind: str, name: str) -> None:
    attached = moved(apply(encoder(kind), parse_method(name)))
    attached.train()
    wanted = {n for n, parameter in attached.model.named_parameters() if parameter.requires_grad}
    assert set(attached.trainable) == wanted
    if name == "frozen":
        assert not loss_of(attached, batch(kind)).requires_grad
        return
    found = gradients(attached, batch(kind))
    assert set(found) == wanted
    still = {n for n, gradient in found.items() if not gradient.abs().max() > 0}
    assert {n for n in still if not n.endswith((".key.bias", ".k.bias", ".k_lin.bias", ".key_proj.bias"))} == set()


def test_the_output_at_the_start_is_the_encoders_where_the_row_says_so(
    encoder: Encoder, batch: Batch, kind: str, name: str
) -> None:
    model = encoder(kind)
    before = states_of(model, batch(kind))
    attached = apply(model, parse_method(name))
    attached.train(False)
    after = states_of(model, batch(kind))
    alike = all(torch.allclose(a, b, atol=1e-6, rtol=1e-5) for a, b in zip(before, after, strict=True))
    assert alike == METHODS[parse_method(name).name].starts_as_encoder
    assert model.training is False


def test_padding_changes_nothing(encoder: Encoder, batch: Batch, kind: str, name: str) -> None:
    attached = moved(apply(encoder(kind), parse_method(name)))
    short, long = (states_of(attached.model, batch(kind, padding)) for padding in (0, 5))
    for a, b in zip(short, long, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_what_is_kept_gives_the_same_output_and_merges_where_the_row_says_so(
    encoder: Encoder, batch: Batch, kind: str, name: str
) -> None:
    spec, inputs, plain = parse_method(name), batch(kind), encoder(kind)
    attached = moved(apply(encoder(kind), spec))
    expected = states_of(attached.model, inputs)
    again = apply(encoder(kind), spec)
    again.load_delta(load(save(attached.delta())))
    again.train(False)
    torch.testing.assert_close(states_of(again.model, inputs), expected, rtol=0, atol=0)
    if name != "frozen":
        assert not torch.allclose(states_of(plain, inputs)[-1], expected[-1], atol=1e-4)
    if not spec.entry.merges:
        with pytest.raises(UsageError, match="cannot be merged"):
            again.merge()
        return
    again.merge()
    assert {n: p.shape for n, p in again.model.state_dict().items()} == {
        n: p.shape for n, p in plain.state_dict().items()
    }
    assert not any(parameter.requires_grad for parameter in again.model.parameters())
    plain.load_state_dict(again.model.state_dict())
    torch.testing.assert_close(states_of(plain, inputs), expected, rtol=1e-4, atol=1e-5)


def test_a_method_can_be_taken_out_again(encoder: Encoder, batch: Batch, kind: str, name: str) -> None:
    plain, model = encoder(kind), encoder(kind)
    attached = moved(apply(model, parse_method(name)))
    own = {n for n in attached.trainable if n in dict(plain.named_parameters())}
    attached.detach()
    assert list(model.state_dict()) == list(plain.state_dict())
    if not own:
        torch.testing.assert_close(states_of(model, batch(kind)), states_of(plain, batch(kind)), rtol=0, atol=0)
    apply(model, parse_method(name))  # a second time


def test_checkpointing_changes_no_gradient(encoder: Encoder, batch: Batch, kind: str, name: str) -> None:
    """Also of a step whose passes differ in length and padding: all are made before the first is computed again."""
    whole, found, calls = batch(kind), [], []
    shorter = {key: value[1:, :-2] for key, value in whole.items()}
    for checkpointing in (False, True):
        attached = moved(apply(encoder(kind), parse_method(name)))
        passes: list[int] = []
        attached.structure.places[-1].first.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        if checkpointing and kind in ("albert", "mpnet"):
            with pytest.raises(UsageError, match="Model has no gradient checkpointing"):
                attached.checkpoint()
            return
        if checkpointing:
            attached.checkpoint()
        if name == "frozen":
            return
        found.append(gradients(attached, whole, shorter))
        calls.append(len(passes))
    assert calls[1] > calls[0]
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_half_precision_by_autocast_reaches_the_same_parameters(
    encoder: Encoder, batch: Batch, kind: str, name: str
) -> None:
    attached = moved(apply(encoder(kind), parse_method(name)))
    attached.train(False)
    with torch.no_grad():
        exact = torch.cat(states_of(attached.model, batch(kind)))
        with torch.autocast("cpu", torch.bfloat16):
            rough = torch.cat(states_of(attached.model, batch(kind))).float()
    assert float((exact - rough).norm() / exact.norm()) < 0.03
    attached.train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(attached, batch(kind))
    if name != "frozen":
        torch.autograd.backward(loss)
    for parameter in attached.trainable.values():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


def test_layers_below_the_lowest_run_in_evaluation_mode(encoder: Encoder, kind: str, name: str) -> None:
    attached = apply(encoder(kind), parse_method(name))
    attached.train()
    structure, lowest = attached.structure, attached.lowest_layer
    told = parse_method(name).lowest_layer(structure.depth)
    assert told == lowest or lowest <= 1  # said without the encoder, where a run may start from a layer below
    for number, layer in enumerate(structure.layers, 1):
        assert {module.training for module in layer.modules()} == {number >= lowest}
    in_front = [leaf for leaf in structure.order if structure.layer_of(leaf) == 0]
    assert {leaf.training for leaf in in_front} == {lowest == 0}
    attached.train(False)
    assert not any(module.training for module in attached.model.modules())


def test_what_an_encoder_cannot_take_is_one_clear_error(
    encoder: Encoder, batch: Batch, refused: tuple[str, str, str]
) -> None:
    """And leaves the encoder as it was."""
    kind, name, reason = refused
    model = encoder(kind)
    before, keys = states_of(model, batch(kind)), list(model.state_dict())
    with pytest.raises(UsageError) as caught:
        apply(model, parse_method(name))
    assert reason in (caught.value.received or "")
    assert type(model).__name__ in caught.value.what
    assert caught.value.remedy
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(states_of(model, batch(kind)), before, rtol=0, atol=0)
