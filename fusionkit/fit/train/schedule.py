"""The usual options of training, named and defined as in PyTorch, transformers and scikit-learn.

    rate of step t of T, W of them warm-up:   lr · t/W                            t < W
                                              lr · (1 − (t − W)/(T − W))          linear
                                              lr · (1 + cos π(t − W)/(T − W))/2   cosine
                                              lr                                  constant
    balanced weight of class c:               n / (C · n_c)

Symbols: ``t`` counts from 0, so that a warm-up begins at rate 0; ``W = ⌈warmup · T⌉``. There are ``n`` training labels,
``n_c`` of them of class c; ``C`` classes occur.
Source: the schedules of transformers, ``compute_class_weight("balanced")`` of scikit-learn.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusionkit.errors import UsageError
from fusionkit.heads import HEADS, LM_HEADS, decides_by_softmax, each_head, gives_numbers
from fusionkit.options.entry import options_of
from fusionkit.specs import FLOAT32, OF_METHODS, RunSpec
from fusionkit.tasks import parts_of

if TYPE_CHECKING:
    from torch import Tensor


def check_options(spec: RunSpec) -> None:
    """Raise UsageError for label smoothing or class weights with a head without a cross-entropy per row, for bfloat16
    with a head that gives a number, and for options of the encoder's training where it is frozen.
    """
    heads = each_head(spec.head)
    if spec.is_frozen:
        known = options_of(RunSpec)
        for entry in (known[name] for name in OF_METHODS if getattr(spec, name) != known[name].default):
            raise UsageError(
                f"--{entry.flag} applies only to methods that train through the encoder",
                expected=f"--{entry.flag} beside another --method than {spec.method}",
                received=f"--method {spec.method}",
                remedy=f"leave --{entry.flag} out, or choose another --method",
            )
    # Among several tasks, those of numbers take their steps in float32.
    if spec.compute_dtype != FLOAT32 and any(map(gives_numbers, heads)) and not spec.is_multi:
        raise UsageError(
            f"head {spec.head!r} cannot use --compute-dtype {spec.compute_dtype}: its numbers would have 8 bits",
            expected=f"--compute-dtype {FLOAT32}",
            received=spec.compute_dtype,
            remedy="leave --compute-dtype out",
        )
    smoothed = f"--label-smoothing {spec.label_smoothing:g}" if spec.label_smoothing else None
    weighted = f"--class-weights {spec.class_weights}" if spec.class_weights != "none" else None
    if weighted is not None and spec.head in LM_HEADS:
        raise UsageError(
            f"head {spec.head!r} cannot use --class-weights: its classes are the encoder's sub-tokens",
            received=weighted,
            remedy="leave --class-weights out",
        )
    for given in (smoothed, weighted):
        if given is not None and not all(map(decides_by_softmax, heads)):
            option = given.split()[0]
            raise UsageError(
                f"head {spec.head!r} cannot use {option}: its loss is no cross-entropy over classes, row by row",
                expected=f"one of the heads {', '.join(name for name in HEADS if decides_by_softmax(name))}",
                received=given,
                remedy=f"leave {option} out, or choose another --head where the task has one",
            )


def check_rate(spec: RunSpec) -> None:
    """Raise UsageError for a method without a rate: nothing of the encoder would change."""
    if not spec.is_frozen and spec.encoder_lr is None:
        raise UsageError(
            f"method {spec.method} has no rate for the encoder",
            expected="encoder_lr, a number above 0",
            received="None",
            remedy="set encoder_lr, or make specs with fusionkit.fit.expand, which takes the method's default",
        )


def precision_of(spec: RunSpec, task: str) -> str:
    """The precision of a task's steps through the encoder: a task of numbers among others has float32."""
    own = spec.is_multi and gives_numbers(parts_of(spec)[task].head)
    return FLOAT32 if own else spec.compute_dtype


class Length(NamedTuple):
    """The length of a run: steps of a whole epoch, all of its steps, and the epochs that it begins."""

    epoch: int
    steps: int
    epochs: int


def length_of(spec: RunSpec, examples: int) -> Length:
    """The length of a run that learns from ``examples`` examples, of all its tasks, if nothing stops it earlier."""
    epoch = spec.steps_per_epoch or max(-(-examples // spec.batch_size), 1)
    steps = spec.epochs * epoch if spec.max_steps is None else spec.max_steps
    return Length(epoch, steps, -(-steps // epoch))


def rate_factor(spec: RunSpec, step: int, steps: int) -> float:
    """The factor of ``lr`` at a step; ``step`` counts from 0, ``steps`` is the number of all steps of the run."""
    warm = math.ceil(spec.warmup * steps)
    if step < warm:
        return step / warm
    gone = (step - warm) / max(steps - warm, 1)
    if spec.schedule == "cosine":
        return (1 + math.cos(math.pi * min(gone, 1.0))) / 2
    return max(1 - gone, 0.0) if spec.schedule == "linear" else 1.0


def balanced_weights(targets: NDArray[np.generic], classes: int) -> Tensor:
    """Balanced weights, float32 ``[classes]``, from targets, int ``[n]``; 0 for a class that the draw lacks."""
    import torch  # options are checked without it

    counts = np.bincount(targets, minlength=classes)
    present = counts > 0
    weights = np.zeros(classes)
    weights[present] = len(targets) / (present.sum() * counts[present])
    return torch.from_numpy(weights).float()
