"""The costs of a run that trains through the encoder, counted on one of its minibatches, the encoder included.

    peak ≤ weights + gradients + optimizer + activations

Symbols: weights, gradients and moments are counted by their bytes, activations are the most bytes of all other tensors
that one step holds at a time. A step in one piece has few gradients while it has the most activations: its peak may be
less than the sum. From its second piece on a step holds the gradients of the first, and its peak can reach the sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fusionkit.fit.model.fused import parameters_of
from fusionkit.fit.model.joint import Model
from fusionkit.fit.model.precision import products_in
from fusionkit.fit.train.meter import Meter
from fusionkit.fit.train.result import RunState
from fusionkit.fit.train.schedule import precision_of
from fusionkit.machine.bfloat16 import in_float32
from fusionkit.methods.attached import Attached
from fusionkit.methods.per_task import OF
from fusionkit.specs import RunSpec
from fusionkit.tasks import parts_of
from fusionkit.tuning.optimizer import Optimizer
from fusionkit.tuning.pieces import pieces_of


def costs_of(
    attached: Attached, model: Model, run: RunState, optimizer: Optimizer, device: torch.device, ranks: int = 1
) -> dict[str, Any]:
    """Fields of the run's record; its weights and buffers are unchanged afterwards. With several tasks the first is
    counted, and of several processes the first one's part of the minibatch.
    """
    spec, draw = run.spec, run.draw.streams[0]
    task, part = next(iter(parts_of(spec).items()))
    minibatch = np.arange(min(len(draw), part.batch_size))
    pieces = pieces_of(draw, minibatch, spec.accumulate, ranks)[0]
    forward = activations = 0
    gradients: dict[int, int] = {}  # bytes, by the id of the weights that have one
    # A batch norm of the user's own counts passes in its buffers.
    buffers = [(each, each.clone()) for module in (attached.model, model) for each in module.buffers()]
    # The meter is inside: copies in float32 are a kernel's scratch memory.
    with in_float32(precision_of(spec, task), device), Meter() as meter:

        def note_gradient(weights: torch.Tensor) -> None:
            """Called once weights have their gradient: the rest of the peak until then was activations."""
            nonlocal activations
            activations = max(activations, meter.peak_bytes - sum(gradients.values()))
            gradients[id(weights)] = weights.nbytes

        hooks = [
            weights.register_post_accumulate_grad_hook(note_gradient)  # type: ignore[no-untyped-call]
            for weights in optimizer.weights
        ]
        for piece in pieces:
            before = meter.flops
            attached.train()
            model.train()
            with products_in(precision_of(spec, task), device, stacked=False):
                loss = model.loss(draw.batch(piece, run.layers).on(device))
                if attached.penalty is not None:
                    loss = loss + attached.penalty() / len(pieces)
            forward += meter.flops - before
            if optimizer.weights:
                loss.backward()  # type: ignore[no-untyped-call]
    for hook in hooks:
        hook.remove()
    for weights in optimizer.weights:
        weights.grad = None
    for buffer, before_it in buffers:
        buffer.copy_(before_it)
    count, learned = sum(map(len, pieces)), sum(weights.nbytes for weights in optimizer.weights)
    every = {
        id(each): each.nbytes
        for each in (
            *attached.model.parameters(),
            *attached.trainable.values(),
            *model.parameters(),
            *model.buffers(),  # a frozen LM head is one
        )
    }
    kept, moments, made = sum(every.values()), 2 * learned, sum(gradients.values())
    return {
        "training_flops": meter.flops // count,
        "prediction_flops": forward // count,
        "peak_memory_alone": kept + moments + meter.peak_bytes,
        "memory_weights": kept,
        "memory_gradients": made,
        "memory_optimizer": moments,
        "memory_activations": max(activations, meter.peak_bytes - made),
    }


def task_weights(spec: RunSpec, attached: Attached, model: Model) -> dict[str, int]:
    """The weights that train in a run of several tasks, of the method and of the fusion, without heads. With
    ``--choose-epoch each`` every task keeps its own copy of the shared ones.

    Returns:
        ``parameters_per_task``, those of the first task alone, and ``shared_parameters``, those of all tasks together.
    """
    name, *_ = parts_of(spec)
    own = sum(weights.numel() for each, weights in attached.trainable.items() if each.endswith(f"{OF}{name}"))
    shared = sum(weights.numel() for each, weights in attached.trainable.items() if OF not in each)
    fusion = parameters_of(model.parts[name].fusion)
    apart = spec.joint_fusion == "each"
    return {
        "parameters_per_task": own + (fusion if apart else 0),
        "shared_parameters": shared + (0 if apart else fusion),
    }
