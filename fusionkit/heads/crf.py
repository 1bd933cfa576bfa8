"""Token tagging by a linear-chain CRF, over feed-forward emissions (Cao et al. 2022) or others.

    s(y) = a_{y_1} + Σ_t e_t[y_t] + Σ_t T[y_{t-1}, y_t] + b_{y_n}
    p(y) = exp s(y) / Σ_{y'} exp s(y')

Symbols: ``e_t`` the emission scores of word t, ``T`` transitions, ``a`` and ``b`` scores of starting and
ending with a tag. Only words take part: rows without a state are removed before.
Source: Lafferty et al. (2001); the log-partition by the scaled forward recursion and the best path by
Viterbi's, both as in Rabiner (1989).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fusionkit.heads.attend import scores_of
from fusionkit.heads.feed_forward import feed_forward
from fusionkit.ragged import pad, segment_ids

FLOOR = 40.0


class Crf(nn.Module):
    """Tags of an example decided together. Parameters: C² + 2C and the emissions'.

    Args:
        score: a module from ``[words, width]`` to emissions ``[words, classes]``.
    """

    def __init__(self, score: nn.Module, classes: int) -> None:
        super().__init__()
        self.score = score
        self.transitions = nn.Parameter(torch.empty(classes, classes).uniform_(-0.1, 0.1))  # from, to
        self.start = nn.Parameter(torch.empty(classes).uniform_(-0.1, 0.1))
        self.end = nn.Parameter(torch.empty(classes).uniform_(-0.1, 0.1))

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[words, width]`` → emissions ``[words, classes]``."""
        return scores_of(self.score, states, offsets)

    def loss(self, scores: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
        """Mean negative log-likelihood of the examples that have words.

        Args:
            scores: ``[words, classes]``. targets: int64 ``[words]``. offsets: int64 ``[examples + 1]``.
        """
        present = int((offsets.diff() > 0).sum())
        nll = self.log_partition(scores, offsets).sum() - self.path_score(scores, targets, offsets).sum()
        return nll / max(present, 1)

    def path_score(self, scores: Tensor, tags: Tensor, offsets: Tensor) -> Tensor:
        """``s(y)`` of given tags, ``[examples]``; 0 where an example has no words."""
        first = torch.zeros(len(tags), dtype=torch.bool, device=scores.device)
        last = first.clone()
        filled = offsets.diff() > 0
        first[offsets[:-1][filled]] = True
        last[offsets[1:][filled] - 1] = True
        steps = scores.gather(1, tags.unsqueeze(1)).squeeze(1)  # [words]
        steps = steps + torch.where(first, self.start[tags], self.transitions[tags.roll(1), tags])
        steps = steps + torch.where(last, self.end[tags], 0.0)
        return scores.new_zeros(len(offsets) - 1).index_add(0, segment_ids(offsets, len(steps)), steps)

    def log_partition(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """``log Σ_y exp s(y)``, ``[examples]``; 0 where an example has no words.

        The recursion runs on probabilities that each step scales to sum 1, so that a step is one matrix
        product; the logarithms of the scales are added back. A score of a transition (start, end) more than
        ``FLOOR`` below the highest is raised to ``FLOOR`` below it.
        """
        emissions, mask = pad(scores, offsets)  # [examples, longest, classes], [examples, longest]
        if emissions.shape[1] == 0:
            return scores.new_zeros(len(mask))
        (start, start_top), (step, step_top), (end, end_top) = map(
            _shifted_exp, (self.start, self.transitions, self.end)
        )
        tops = emissions.detach().amax(2)  # [examples, longest]
        alpha, alphas, norms = start, [], []
        for t, emission in enumerate((emissions - tops.unsqueeze(2)).exp().unbind(1)):
            # [examples, from] @ [from, to] → [examples, to]
            alpha = (alpha @ step if t else start) * emission
            norms.append(alpha.detach().sum(1))  # [examples]
            alpha = alpha / norms[-1].unsqueeze(1)
            alphas.append(alpha)
        lengths = offsets.diff()
        final = torch.stack(alphas, 1)[torch.arange(len(mask), device=scores.device), lengths - 1]
        # The logarithms of the scales, over each example's own words; there is one transition fewer than words.
        scale = torch.where(mask, tops + torch.stack(norms, 1).log(), 0.0).sum(1)
        scale = scale + start_top + step_top * (lengths - 1) + end_top
        return torch.where(lengths > 0, scale + (final @ end).log(), 0.0)

    @torch.no_grad()
    def decode(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """The best path of each example, int64 ``[words]``."""
        emissions, mask = pad(scores, offsets)
        longest = emissions.shape[1]
        if longest == 0:
            return torch.zeros(0, dtype=torch.int64, device=scores.device)
        alpha = self.start + emissions[:, 0]
        back = []
        for t in range(1, longest):
            best, source = (alpha.unsqueeze(2) + self.transitions).max(dim=1)  # [examples, to]
            alive = mask[:, t].unsqueeze(1)
            alpha = torch.where(alive, best + emissions[:, t], alpha)
            # After an example's end the path keeps its tag.
            stay = torch.arange(source.shape[1], device=scores.device).expand_as(source)
            back.append(torch.where(alive, source, stay))
        path = [(alpha + self.end).argmax(-1)]
        for source in reversed(back):
            path.append(source.gather(1, path[-1].unsqueeze(1)).squeeze(1))
        return torch.stack(path[::-1], 1)[mask]  # [examples, longest] → [words]


def crf(width: int, classes: int, dropout: float) -> Crf:
    """A linear-chain CRF over the tagger's scores, which see each word alone.

    Parameters: 256 d + 66,048 + C² + 259 C. Dropout acts on each hidden layer's output. Source: Cao et al. (2022).
    """
    return Crf(feed_forward(width, classes, dropout), classes)


def _shifted_exp(weights: Tensor) -> tuple[Tensor, Tensor]:
    """``exp(weights − top)`` and their ``top``."""
    top = weights.detach().max()
    # Float32 ends at e^±87, and the backward pass squares the smallest transition: without
    # the floor, emissions that force a path over a very low one make the loss or its gradient NaN.
    return (weights - top).clamp(min=-FLOOR).exp(), top
