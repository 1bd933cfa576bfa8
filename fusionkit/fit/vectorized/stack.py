"""Runs of the same shapes as one model: a leading run axis on every weight, one pass for all of them.

A run in a stack ends with the weights that it has alone, to rounding: no run's loss depends on another's weights, so
the gradient of the sum of all losses is each run's own; dropout masks come from each run's own generator.

A fusion is stacked by batched products where :mod:`fusionkit.fit.vectorized.layer_mixes` has them, a chain of linear
layers by :mod:`fusionkit.fit.vectorized.readout`, all else by ``torch.func.vmap``. Models that vmap cannot stack
(``torch.nn.LSTM``, runs of several tasks) or that share weights too large to copy (an encoder's LM head) are computed
one after another by :class:`LoopedRuns`.

Axes: ``R`` runs; ``S`` data seeds; ``n`` rows that the head reads, or examples where their rows are pooled.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fusionkit.dataset.batch import Batch
from fusionkit.fit.model.fused import FusedModel
from fusionkit.fit.model.joint import Model
from fusionkit.fit.model.precision import exactly, products_in, widened
from fusionkit.fit.vectorized.adam import StackedAdam, limits_of, pieces_of
from fusionkit.fit.vectorized.cuda_graphs import CudaGraphs
from fusionkit.fit.vectorized.dropout import RunDropout, generator_of, with_run_dropout
from fusionkit.fit.vectorized.folding import FUSION, SCORE, Folding, Weights, part_weights
from fusionkit.fit.vectorized.layer_mixes import spreads, stacked_fusion
from fusionkit.fit.vectorized.looped import LoopedRuns
from fusionkit.fit.vectorized.own_modules import can_stack_own
from fusionkit.fit.vectorized.readout import MANY_ROWS, chain_of_head, chained, cross_entropies
from fusionkit.fit.vectorized.run_linear import with_run_linear
from fusionkit.fusions import sees_examples, takes_longest
from fusionkit.heads import Head
from fusionkit.heads.lm_head import LmScore
from fusionkit.heads.softmax import Softmax
from fusionkit.machine.devices import home_of
from fusionkit.specs import FLOAT32, ONE_TOKEN, RunSpec

Wanted = Literal["loss", "score", "decide"]


def can_stack(model: Model) -> bool:
    """Whether vmap can stack a model, and every run has weights of its own."""
    if not isinstance(model, FusedModel) or any(isinstance(m, (nn.RNNBase, LmScore)) for m in model.modules()):
        return False
    return can_stack_own(model)


def stack_of(specs: Sequence[RunSpec], models: Sequence[Model]) -> Stack:
    """The runs as a stack; as :class:`LoopedRuns` where they cannot be stacked or one run gains nothing by it."""
    single = [model for model in models if isinstance(model, FusedModel)]
    # What one run gains: a stack's products have few shapes, so that kernels are reused; a GPU records its steps.
    pays = len(models) > 1 or specs[0].compute_dtype != FLOAT32 or home_of(models[0]).type == "cuda"
    folding = Folding.of(single[0]) if single else None
    pays = pays or (folding is not None and folding.is_narrow)
    if pays and len(single) == len(models) and can_stack(models[0]):
        return Stacked(specs, single)
    return LoopedRuns(specs, models)


class Stacked:
    """Several models as one. The data seeds of a stack must have minibatches of the same shape.

    Attributes:
        specs: the runs, in the order of every axis R; runs of one data seed are neighbours.
        learns: whether any weight is learned. device: the device of the runs, on which batches are expected.
        by_row: whether every row that is read is decided by its own best score. whole_examples: whether a row's scores
            depend on all rows of its example.
    """

    def __init__(self, specs: Sequence[RunSpec], models: Sequence[FusedModel]) -> None:
        self._plain, self.device = models[0], home_of(models[0])
        self.specs = list(specs)
        self._generators = [generator_of(spec.init_seed, self.device) for spec in specs]
        states = [model.state_dict() for model in models]
        self._leaves = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        self._learned = [name for name, p in self._plain.named_parameters() if p.requires_grad]
        self.learns = bool(self._learned)
        self._base = copy.deepcopy(self._plain)
        with_run_dropout(self._base, self._generators)
        head = self._base.head
        self._head = _HeadCalls(head)
        self._fuse, self._chain = stacked_fusion(self._base.fusion), chain_of_head(head)
        # Not on a GPU: its recordings would fold again in every block, and products do not limit its speed.
        self._folding = Folding.of(self._base) if self.device.type == "cpu" else None
        with_run_linear(self._base, stacked=True)
        self._base.train()
        by_softmax = type(head) is Softmax and not getattr(head.score, "across_rows", False) and self._base.sides == 1
        self.by_row = by_softmax and self._base.pool in (None, *ONE_TOKEN)
        self.whole_examples = sees_examples(specs[0].fusion)
        # A loss that is both weighted and smoothed runs over the rows that have a target: the host waits for their
        # number, which a recording cannot do.
        waits = specs[0].class_weights != "none" and specs[0].label_smoothing > 0
        self._takes_longest = takes_longest(specs[0].fusion)
        self._records = by_softmax and (self._takes_longest or not self.whole_examples) and not waits
        self._adam: StackedAdam | None = None  # made in the first step: runs that are only scored need no moments
        self._reset()

    def _reset(self) -> None:
        """Rebuild what depends on the set of runs or on the memory of their weights."""
        self._folded: dict[str, Tensor] | None = None
        self._limits = limits_of([spec.clip_norm for spec in self.specs], self.device)
        self._graphs: CudaGraphs | None = None
        if self.device.type == "cuda":
            draws = any(isinstance(module, RunDropout) and module.p > 0 for module in self._base.modules())
            self._graphs = CudaGraphs(self.device, self._generators if draws else ())
            self._rates = torch.zeros(len(self.specs), device=self.device)

    def step(self, batches: Sequence[Batch], rates: Sequence[float | None]) -> Tensor:
        """A training step of every run.

        Args:
            batches: one minibatch per data seed. rates: one per run; None for a run that has made all of its steps,
                whose weights stay as they are.

        Returns:
            the losses before the step, ``[R]``; an arbitrary number for a run that has made all of its steps.
        """
        given = [rate or 0.0 for rate in rates]
        self._folded = None  # the weights change
        if self._adam is None:
            self._adam = StackedAdam(self._trainable(), self.specs[0].optimizer == "adamw", pieces_of(self.specs))
        adam = self._adam
        if self._graphs is None:
            return self._train_step(adam, batches, given)
        # From pinned memory: any other copy would wait for all work that the GPU was given before.
        pinned = torch.tensor(given, pin_memory=self.device.type == "cuda")
        on_device = self._rates.copy_(pinned, non_blocking=True)
        return self.recorded("loss", batches, lambda: self._train_step(adam, batches, on_device))

    def recorded(self, name: str, batches: Sequence[Batch], work: Callable[[], Tensor]) -> Tensor:
        """Do work on these minibatches. A GPU records and replays it where the host need not wait for a number, and
        where the minibatches lie in a reused buffer.
        """
        first = batches[0]
        if self._graphs is None or not self._records or first.place is None:
            return work()
        if self.whole_examples and first.longest is None:
            return work()
        return self._graphs.do(first.place, name, work)

    def _train_step(self, adam: StackedAdam, batches: Sequence[Batch], rates: Sequence[float] | Tensor) -> Tensor:
        learned = [self._leaves[name] for name in self._learned]
        with products_in(self.specs[0].compute_dtype, self.device, stacked=True):
            first, weights = batches[0], self._weights()
            if self._folding and first.read is None and self._folding.saves(len(first.states), learns=True):
                weights = self._folding.folded(weights)
            losses = self._call(weights, batches, "loss")
        gradients = torch.autograd.grad(losses.sum(), learned, allow_unused=True)
        adam.step(gradients, rates, self._limits)
        return losses.detach()

    @torch.inference_mode()
    def decide(self, batch: Batch, rows: int = 0) -> Tensor:
        """The decisions of each run on one batch: class numbers, numbers or probabilities ``[R, n, …]``, of the first
        task.

        Args:
            rows: the number of rows that are decided before the next step, this batch included.

        Returns:
            a tensor to read before the next call: on a GPU the next call with this batch writes to the same memory.
        """
        weights = self.scoring_weights(batch, rows)
        return self.recorded("decide", [batch], lambda: self._call(weights, [batch], "decide"))

    @torch.inference_mode()
    def scores(self, weights: Weights, batches: Sequence[Batch], counts: Sequence[int] = ()) -> Tensor:
        """The scores ``[R, n, classes]`` of given weights; ``counts`` are the numbers of runs that read each batch."""
        return self._call(weights, batches, "score", counts)

    @torch.inference_mode()
    def scoring_weights(self, batch: Batch, rows: int = 0) -> Weights:
        """All runs' weights as they are until the next step, folded where that pays for ``rows`` rows."""
        weights = self._weights()
        if self._folding and batch.read is None and self._folding.saves(rows, learns=False):
            self._folded = weights = self._folded or self._folding.folded(weights)
        return weights

    def weights(self, run: int) -> dict[str, Tensor]:
        """A copy of a run's weights as they are now, by their names in its model."""
        return {name: leaf.detach()[run].clone() for name, leaf in self._leaves.items()}

    def model(self, run: int) -> Model:
        """A run's model with its weights as they are now. Here it is a copy; that of :class:`LoopedRuns` changes with
        later steps while the run is kept.
        """
        model = copy.deepcopy(self._plain)
        model.load_state_dict(self.weights(run))
        return model

    def keep(self, runs: Sequence[int]) -> None:
        """Keep only these runs, in this order."""
        at = torch.tensor(list(runs), dtype=torch.int64, device=self.device)
        self.specs = [self.specs[run] for run in runs]
        self._generators[:] = [self._generators[run] for run in runs]  # in place: the dropouts hold this list
        self._leaves = {name: leaf.detach()[at] for name, leaf in self._leaves.items()}
        if self._adam is not None:
            self._adam.keep(self._trainable(), at, pieces_of(self.specs))
        self._reset()

    @property
    def _counts(self) -> list[int]:
        """The number of runs of each data seed."""
        return list(Counter(spec.data_seed for spec in self.specs).values())

    def _trainable(self) -> list[Tensor]:
        """The weights that are learned, ready for gradients."""
        return [self._leaves[name].requires_grad_() for name in self._learned]

    def _weights(self) -> dict[str, Tensor]:
        """Everything that differs from run to run, by its name in the model; the run numbers are on the CPU."""
        numbers = torch.arange(len(self.specs))
        return self._leaves | {name: numbers for name, _ in self._base.named_buffers() if name.endswith(".run")}

    def _call(self, weights: Weights, batches: Sequence[Batch], wanted: Wanted, counts: Sequence[int] = ()) -> Tensor:
        """Losses ``[R]``, scores ``[R, n, classes]`` or decisions ``[R, n]``.

        Args:
            counts: the number of runs that read each batch; by default those of its data seed, or all for one batch.
        """
        first, model = batches[0], self._base
        if model.training is not (wanted == "loss"):  # the call visits all modules
            model.train(wanted == "loss")
        if not counts:
            counts = self._counts if len(batches) > 1 else [len(next(iter(weights.values())))]
        fused, offsets = self._fused(weights, batches, counts), first.offsets  # [rows, width] or [R, rows, width]
        if first.read is not None or model.pool in ("mean", "max") or model.compares:
            if first.read is not None:
                fused = fused.index_select(-2, first.read)
            offsets = first.read_offsets
            pooled = partial(model.pooled, offsets=offsets)
            fused = vmap(pooled)(fused) if fused.dim() == 3 else pooled(fused)  # [n, width] or [R, n, width]
        head = {name: w for name, w in weights.items() if name.startswith("head.")}
        if self._chain is not None:
            scores = chained(self._chain, part_weights(SCORE, weights), fused)  # [R, n, classes]
        else:
            scores = self._by_vmap("score", head, offsets, (fused,), (0 if fused.dim() == 3 else None,))
        if wanted == "score":
            return scores
        targets, run_axis = _per_run([batch.targets for batch in batches], counts)  # [n, …] or [R, n, …]
        with exactly(scores.device):
            if wanted == "loss" and type(model.head) is Softmax:  # a subclass may do more
                return cross_entropies(model.head, widened(scores), targets)
            return self._by_vmap(wanted, head, first.read_offsets, (widened(scores), targets), (0, run_axis))

    def _fused(self, weights: Weights, batches: Sequence[Batch], counts: Sequence[int]) -> Tensor:
        """The fused rows: ``[rows, width]`` where they are the same for all runs, else ``[R, rows, width]``."""
        fusion, states, offsets = self._base.fusion, batches[0].states, batches[0].offsets
        own = part_weights(FUSION, weights)
        if not own:  # folded into the head, or a fusion without weights: the output is the same for each seed's runs
            fuse = fusion if self._folding is None else _side_by_side
            return _per_run([fuse(batch.states, batch.offsets) for batch in batches], counts)[0]
        if self._fuse is not None and len(set(counts)) == 1 and not spreads(fusion, states, sum(counts)):
            # [S, rows, layers, hidden]; one seed's without a copy
            seeds = states.unsqueeze(0) if len(batches) == 1 else torch.stack([b.states for b in batches])
            return self._fuse(fusion, own, seeds, counts[0]).flatten(0, 1)
        assert isinstance(fusion, nn.Module)
        longest = batches[0].longest if self._takes_longest else None
        named = {} if longest is None else {"longest": longest}

        def one(own: Mapping[str, Tensor], states: Tensor) -> Tensor:
            """One run: ``[rows, layers, hidden]`` → ``[rows, width]``."""
            found: Tensor = functional_call(fusion, dict(own), (states, offsets), named)
            return found

        on_cpu = self.device.type == "cpu"
        if on_cpu and len(batches) == 1 and not torch.is_grad_enabled() and len(states) >= MANY_ROWS:
            # Run by run, so that the values between a fusion's layers stay in a core's cache.
            runs = range(len(next(iter(own.values()))))
            return torch.stack([one({name: w[run] for name, w in own.items()}, states) for run in runs])
        states, run_axis = _per_run([batch.states for batch in batches], counts)  # [(R,) rows, layers, hidden]
        found: Tensor = vmap(one, (0, run_axis))(own, states)
        return found

    def _by_vmap(
        self, wanted: Wanted, weights: Weights, offsets: Tensor, given: Sequence[Tensor], dims: Sequence[int | None]
    ) -> Tensor:
        """The heads of all runs called by vmap; results as of :meth:`_call`.

        Args:
            given: fused states ``[(R,) n, width]``; or scores ``[R, n, classes]`` and targets ``[(R,) n, …]``.
            dims: their run axes; None where they are the same for all runs.
        """

        def one(own: Mapping[str, Tensor], *each: Tensor) -> Tensor:
            found: Tensor = functional_call(self._head, dict(own), (wanted, offsets, *each))
            return found

        found: Tensor = vmap(one, (0, *dims))(weights, *given)
        return found


Stack = Stacked | LoopedRuns


class _HeadCalls(nn.Module):
    """A head's scores, loss and decisions as one ``forward``, so that ``functional_call`` can replace its weights."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, wanted: Wanted, offsets: Tensor, given: Tensor, targets: Tensor | None = None) -> Tensor:
        """Scores from fused states; loss or decisions from scores."""
        if wanted == "score":
            return self.head(given, offsets)
        if wanted == "decide":
            return self.head.decode(given, offsets)
        assert targets is not None
        return self.head.loss(given, targets, offsets)


def _side_by_side(states: Tensor, offsets: Tensor) -> Tensor:
    """The input of folded weights: ``[rows, layers, hidden]`` → ``[rows, layers · hidden]``."""
    return states.flatten(1)


def _per_run(tensors: Sequence[Tensor], counts: Sequence[int]) -> tuple[Tensor, int | None]:
    """One tensor per run, ``[R, n, …]``, and its run axis, from tensors ``[n, …]`` of data seeds with ``counts`` runs
    each; for one data seed the tensor that all runs share, and None.
    """
    if len(tensors) == 1:
        return tensors[0], None
    return torch.stack([tensor for tensor, count in zip(tensors, counts, strict=True) for _ in range(count)]), 0
