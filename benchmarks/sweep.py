"""Heads per minute: runs over a store against training one head after another, and against encoding each minibatch.

    python benchmarks/sweep.py DATA WORK [--only NAME …] [--runs N] [--json]

DATA holds conll2003 and sst2; WORK takes the stores and keeps them. Three sweeps over MiniLM's states, each in one run:

    few-shot classification   SST-2, rows of mean, 16 examples a class: 4 fusions × 8 seeds × 3 rates = 96 runs, 30 epochs
    few-shot tagging          CoNLL-2003, words, 128 sentences an entity type: 4 fusions × 5 seeds × 3 rates = 60, 10 epochs
    full                      CoNLL-2003, words, all sentences: 4 fusions × 2 rates, one seed = 8 runs, 2 epochs

Contender: `fusionkit fit`, from open store to written records. (a) A plain PyTorch loop trains one head after another
over features that lie in memory as float32, with fused AdamW and both cores; validation is scored on class numbers
after every epoch, by the same counting of spans, and test once. (b) What a system without a store does: (a)'s steps with a
forward pass of the encoder before each minibatch and each scoring; measured on a few of them, and counted up.
The contender is charged with the one encode. (a) and the contender are measured in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fusionkit.draws import epoch_order, uniform_draw
from fusionkit.fit.data import TaskData, TaskSplit
from fusionkit.fit.spans import Spans
from fusionkit.fusions import build_fusion, fusion_layers
from fusionkit.heads import build_head
from fusionkit.store import Store

Layers = tuple[int, ...]
FUSIONS = ("last", "linear", "attention", "concat")


@dataclass(frozen=True)
class Case:
    """One sweep: what `fusionkit fit` is told, and what the plain loop does."""

    store: str
    head: str
    shots: int | None
    epochs: int
    seeds: int
    rates: tuple[float, ...]
    batch_size: int = 16
    claim: float = 1.0

    @property
    def runs(self) -> int:
        return len(FUSIONS) * self.seeds * len(self.rates)


CASES = {
    "few-shot-classification": Case("sst2", "classifier", 16, 30, 8, (5e-4, 1e-3, 2e-3), claim=3.0),
    "few-shot-tagging": Case("conll2003", "tagger", 128, 10, 5, (5e-4, 1e-3, 2e-3), claim=2.0),
    "full": Case("conll2003", "tagger", None, 2, 1, (1e-3, 2e-3), batch_size=32, claim=1.5),
}
ENCODE = {"sst2": ["--rows", "mean"], "conll2003": ["--rows", "words"]}


class Features:
    """A split in memory as the plain loop has it: float32 ``[rows, layers, hidden]``, and class numbers."""

    def __init__(self, split: TaskSplit, data: TaskData) -> None:
        self.states = split.states.gather(split.rows).float().contiguous()
        self.targets, self.offsets = torch.from_numpy(split.targets), split.offsets
        self.count = len(split)
        words = split.kept is not None
        self.spans = Spans(data.labels, split.offsets, split.targets) if words and -1 not in split.targets else None

    def batch(self, examples: np.ndarray, layers: Layers) -> tuple[Tensor, Tensor]:
        """States of the layers and targets of some examples."""
        rows = np.concatenate([np.arange(self.offsets[i], self.offsets[i + 1]) for i in examples])
        at = torch.from_numpy(rows)
        return self.states[at, layers[0] : layers[-1] + 1], self.targets[at]

    def score(self, model: nn.Module, layers: Layers) -> float:
        """F1 of spans, or accuracy."""
        with torch.no_grad():
            found = torch.cat(
                [model(piece).argmax(1) for piece in self.states[:, layers[0] : layers[-1] + 1].split(2048)]
            )
        if self.spans is not None:
            return self.spans.f1(found.numpy())
        return float((found == self.targets).float().mean())


class Plain(nn.Module):
    """Fusion and head as anyone would call them."""

    def __init__(self, fusion: str, head: str, layers: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.fusion = build_fusion(fusion, layers, hidden)
        self.head = build_head(head, self.fusion.width, classes, 0.0)

    def forward(self, states: Tensor) -> Tensor:
        offsets = torch.arange(len(states) + 1)
        return self.head(self.fusion(states, offsets), offsets)


def plain_loop(case: Case, features: dict[str, Features], data: TaskData, store: Store) -> Iterator[float]:
    """(a): one head after another; the test score of each."""
    train = features["train"]
    for fusion in FUSIONS:
        layers = fusion_layers(fusion, store.layers, len(store.layers))
        for seed in range(case.seeds):
            draw = np.arange(train.count)
            if case.shots is not None:
                draw = uniform_draw(train.count, case.shots, data.classes, seed)
            for rate in case.rates:
                torch.manual_seed(seed)
                model = Plain(fusion, case.head, len(layers), store.hidden, len(data.labels))
                optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, fused=True)
                steps = case.epochs * -(-len(draw) // case.batch_size)
                schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step, steps=steps: 1 - step / steps)
                best, kept = -1.0, {}
                for epoch in range(1, case.epochs + 1):
                    order = draw[epoch_order(len(draw), seed, epoch)]
                    for at in range(0, len(order), case.batch_size):
                        states, targets = train.batch(order[at : at + case.batch_size], layers)
                        optimizer.zero_grad()
                        nn.functional.cross_entropy(model(states), targets).backward()
                        optimizer.step()
                        schedule.step()
                    if (value := features["validation"].score(model, layers)) > best:
                        best, kept = value, {name: w.clone() for name, w in model.state_dict().items()}
                model.load_state_dict(kept)
                yield features["test"].score(model, layers)
