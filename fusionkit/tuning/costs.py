"""The costs of a run that trains through the encoder: counted on one minibatch of its own, the encoder included.

    peak = weights + gradients + optimizer + activations

Symbols: weights, gradients and moments are counted by their bytes, activations are the most bytes of all other tensors
that one step holds at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusionkit.fit.model.joint import Model
from fusionkit.fit.model.precision import products_in
from fusionkit.fit.train.meter import Meter
from fusionkit.fit.train.result import RunState
from fusionkit.tuning.encoder import TunedEncoder
from fusionkit.tuning.optimizer import Optimizer


def costs_of(tuned: TunedEncoder, model: Model, run: RunState, optimizer: Optimizer) -> dict[str, Any]:
    """Fields of the run's record; its weights are unchanged afterwards."""
    spec, device = run.spec, tuned.encoder.device
    examples = np.arange(min(len(run.draw), spec.batch_size))
    tuned.attached.train()
    model.train()
    with Meter() as meter:
        with products_in(spec.compute_dtype, device, stacked=False):
            batch = run.draw.batch(examples, run.layers).on(device)
            loss = model.loss(batch)
        forward = meter.flops
        if optimizer.weights:
            loss.backward()  # type: ignore[no-untyped-call]
    learned = sum(weights.nbytes for weights in optimizer.weights)
    gradients = sum(0 if weights.grad is None else weights.grad.nbytes for weights in optimizer.weights)
    for weights in optimizer.weights:
        weights.grad = None
    every = {id(each): each.nbytes for each in (*tuned.encoder.model.parameters(), *model.parameters())}
    activations = max(meter.peak_bytes - gradients, 0)
    parts = {
        "weights": sum(every.values()), "gradients": gradients, "optimizer": 2 * learned, "activations": activations
    }  # fmt: skip
    return {
        "training_flops": meter.flops // len(examples),
        "prediction_flops": forward // len(examples),
        "peak_memory_alone": sum(parts.values()),
        **{f"memory_{name}": value for name, value in parts.items()},
    }
