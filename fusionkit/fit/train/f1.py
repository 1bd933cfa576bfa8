"""Micro F1 on class numbers, cheap enough for every epoch of every run: of spans, and of labels above a threshold.

    a span begins at t   where tag t is B-x, or is I-x and does not follow B-x or I-x of its sentence
    it ends              before the next span, ``O`` or sentence
    it is right          if a gold span has the same beginning, kind and end

    F1 = 2 · right / (found + gold)

    F1 of the k likeliest pairs of an example and a class   =   2 r_k / (k + t)

Symbols: ``r_k`` how many of these pairs are right, ``t`` the number of gold pairs. The threshold lies half-way between
the probabilities of the last pair that is taken and of the next one; pairs of equal probability are taken together.

A break is a word at which the previous span, or run of ``O``, ends. With the breaks numbered, a span that begins at s
ends before e if e is the next break after s.

Source: conlleval's rules, as seqeval has them; the tests hold both against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fusionkit.heads.sigmoid_classifier import UNCHOSEN
from fusionkit.machine.devices import CPU
from fusionkit.ragged import IntArray
from fusionkit.tags import is_span_tag


class Spans:
    """The spans of one split's words; the attribute ``gold`` is their number.

    Args:
        names: the tag of each class: ``O``, ``B-x`` or ``I-x``; others, which only gold can have, mark no span.
        offsets: int64 ``[sentences + 1]`` into the words.
        gold: int64 ``[words]``. device: the device of the tags to count.
    """

    def __init__(self, names: Sequence[str], offsets: IntArray, gold: IntArray, device: torch.device = CPU) -> None:
        marking = [name if is_span_tag(name) else "O" for name in names]
        kinds = {kind: k for k, kind in enumerate(dict.fromkeys(name[2:] for name in marking if name != "O"), start=1)}
        of_tag = torch.tensor([kinds.get(name[2:], 0) for name in marking], dtype=torch.int32)  # 0 is no span
        self._kind = of_tag.to(device)
        self._opens = torch.tensor([name.startswith("B-") for name in marking]).to(device)
        first = torch.zeros(int(offsets[-1]) + 1, dtype=torch.bool)
        first[torch.from_numpy(offsets)] = True
        first[0] = first[-1] = True
        self._first = first.to(device)
        breaks, kind = self._broken(torch.from_numpy(gold).to(device))
        begins = (breaks[:-1] & (kind > 0)).nonzero().squeeze(1)  # [gold]
        every = breaks.nonzero().squeeze(1)
        self._starts, self._kinds = begins, kind[begins]
        self._offsets = torch.from_numpy(offsets).to(device)
        self._sentence = torch.searchsorted(self._offsets, begins, right=True) - 1  # [gold]; never an empty sentence
        self._ends = every[torch.searchsorted(every, begins, right=True)]
        self.gold = len(begins)

    def counts(self, tags: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of right spans and of found spans, int64 ``[…]`` each, from tags ``[…, words]``."""
        right, begun = self._spans(tags)
        return right.sum(-1), begun.sum(-1)

    def by_sentence(self, tags: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same per sentence, int64 ``[…, sentences]`` each, and the gold spans per sentence, ``[sentences]``."""
        right, begun = self._spans(tags)
        sentences = len(self._offsets) - 1
        hits = right.new_zeros(*right.shape[:-1], sentences, dtype=torch.int64)
        hits.index_add_(-1, self._sentence, right.long())
        return hits, self.per_sentence(begun), torch.bincount(self._sentence, minlength=sentences)

    def per_sentence(self, marks: Tensor) -> Tensor:
        """The number of marked words per sentence, int64 ``[…, sentences]``, from bool ``[…, words]``."""
        until = functional.pad(marks.cumsum(-1), (1, 0))  # [..., words + 1]
        return until[..., self._offsets[1:]] - until[..., self._offsets[:-1]]

    def _spans(self, tags: Tensor) -> tuple[Tensor, Tensor]:
        """Which gold spans are right, bool ``[…, gold]``, and where a found one begins, bool ``[…, words]``."""
        breaks, kind = self._broken(tags)
        found = breaks[..., :-1] & (kind > 0)
        order = breaks.cumsum(-1, dtype=torch.int32)
        starts, ends = self._starts, self._ends
        begun = breaks[..., starts] & (kind[..., starts] == self._kinds)
        ended = breaks[..., ends] & (order[..., ends] == order[..., starts] + 1)
        return begun & ended, found

    def f1(self, tags: Tensor) -> Tensor:
        """Micro F1, float64 ``[…]``, of tags ``[…, words]``; 0 where nothing is right."""
        right, found = (count.cpu() for count in self.counts(tags))  # not every device has float64
        return 2 * right.double() / (found + self.gold).clamp(min=1)

    def _broken(self, tags: Tensor) -> tuple[Tensor, Tensor]:
        """Breaks, bool ``[…, words + 1]``, the last behind the last word; and the kind of each word, ``[…, words]``."""
        kind = self._kind[tags]
        changes = (kind[..., 1:] != kind[..., :-1]) | self._opens[tags[..., 1:]]
        return functional.pad(changes, (1, 1))[..., : kind.shape[-1] + 1] | self._first, kind


def best_threshold(targets: NDArray[Any], gold: Sequence[Sequence[str]], likely: Tensor) -> tuple[float, float]:
    """The probability above which an example gets a class, and the F1 with it. It is the highest of the thresholds with
    the best F1; 0.5 where no label is right.

    Args:
        targets: ``[examples, classes]``, 1 where an example has a class. gold: all labels of each example, including
            those without a learned class. likely: probabilities, ``[examples, classes]``.
    """
    told = sum(map(len, gold))
    ordered, order = likely.flatten().sort(descending=True, stable=True)
    right = torch.from_numpy(targets).to(likely.device).flatten()[order].double().cumsum(0).cpu()
    ordered = ordered.cpu()
    taken = torch.arange(1, len(ordered) + 1)
    f1 = 2 * right / (taken + told)
    following = torch.cat([ordered[1:], ordered.new_zeros(1)])
    f1[ordered <= following] = 0.0  # the next pair is as likely: no threshold lies between them
    if not len(f1) or not float(f1.max()):
        return UNCHOSEN, 0.0
    at = int(f1.argmax())
    last, first_left = float(ordered[at]), float(following[at])
    between = float(np.float32((last + first_left) / 2))
    return (between if between < last else first_left), float(f1[at])
