"""States that are computed when they are asked for, by an encoder that may be in training.

They stand in the place of a store's states under a task's splits, so that minibatches, decisions and scores are made as
over stored ones. Where gradients are on, they reach the encoder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.encode.batching import Batching
from fusionkit.encoder import Encoder
from fusionkit.errors import UsageError
from fusionkit.ragged import IntArray
from fusionkit.tuning.ranks import ALONE, Ranks
from fusionkit.tuning.tokens import Tokens, TokenSource


class LiveStates:
    """The states of a split's rows, ``[rows, layers, hidden]``.

    Args:
        layers: the encoder's layers in the order of the positions by which they are asked for.
        batching: how sequences of similar length are put together; a minibatch may come in several such pieces.
        ranks: who asks for the same rows at the same time; without gradients each computes a part of them.
    """

    def __init__(
        self, encoder: Encoder, tokens: Tokens, layers: Sequence[int], batching: Batching, ranks: Ranks = ALONE
    ) -> None:
        self._encoder, self._tokens, self._layers, self._batching = encoder, tokens, tuple(layers), batching
        self._ranks = ranks
        self.shape = (len(tokens.token_ids), len(layers), encoder.hidden)

    def gather(self, rows: IntArray, layers: Sequence[int] | None = None) -> Tensor:
        """Chosen rows and positions of layers, float32 ``[len(rows), layers, hidden]``, on the encoder's device."""
        positions = range(len(self._layers)) if layers is None else layers
        wanted, tokens = [self._layers[at] for at in positions], self._tokens
        device, found, places = self._encoder.device, list[Tensor](), list[IntArray]()
        sequences, which = np.unique(tokens.sequences_of(rows), return_inverse=True)
        order = np.argsort(which, kind="stable")  # rows of one sequence side by side
        bounds = np.searchsorted(which[order], np.arange(len(sequences) + 1))
        lengths = np.diff(tokens.offsets)[sequences]
        together = self._ranks.count > 1 and not torch.is_grad_enabled()
        for number, piece in enumerate(self._batching.cut(lengths)):
            if together and number % self._ranks.count != self._ranks.rank:
                continue
            states = self._forward(sequences[piece])  # of each layer [piece, length, hidden]
            mine = np.concatenate([order[bounds[each] : bounds[each + 1]] for each in piece])
            counts = (bounds[1:] - bounds[:-1])[piece]
            inside = rows[mine] - np.repeat(tokens.offsets[sequences[piece]], counts)
            length = states[0].shape[1]
            source = torch.from_numpy(np.repeat(np.arange(len(piece)), counts) * length + inside).to(device)
            # [piece, length, hidden] → [piece · length, hidden] → [rows here, hidden], layers side by side
            taken = [states[layer].flatten(0, 1).index_select(0, source).float() for layer in wanted]
            found.append(torch.stack(taken, 1))
            places.append(mine)
        if together:
            whole = torch.zeros(len(rows), len(wanted), self.shape[2], device=device)
            for at, part in zip(places, found, strict=True):
                whole[torch.from_numpy(at).to(device)] = part
            return self._ranks.sum(whole)  # of one rank's states and zeros: exact
        if not found:
            return torch.empty(0, len(wanted), self.shape[2], device=device)
        back = torch.from_numpy(np.argsort(np.concatenate(places))).to(device)
        return torch.cat(found).index_select(0, back)  # [len(rows), layers, hidden]

    def _forward(self, sequences: IntArray) -> tuple[Tensor, ...]:
        """L + 1 tensors ``[n, length, hidden]`` of some sequences, the longest first."""
        tokens, encoder = self._tokens, self._encoder
        starts = tokens.offsets[sequences]
        lengths = tokens.offsets[sequences + 1] - starts
        steps = np.arange(int(lengths.max()))
        inside = steps < lengths[:, None]  # [n, length]
        source = np.where(inside, starts[:, None] + steps, 0)
        ids = np.where(inside, tokens.token_ids[source], encoder.pad_id)
        segments = np.where(inside, tokens.segments[source], 0)
        inputs = (torch.from_numpy(each.astype(np.int64)).to(encoder.device) for each in (ids, inside, segments))
        return encoder.states(*inputs)


def refuse_long(encoder: Encoder, added: int, source: TokenSource, data: TaskData) -> None:
    """UsageError where a method puts so many positions in front of sequences that the encoder cannot read them."""
    longest = max(
        int(np.diff(source.of(split.states).offsets).max(initial=0)) for split in (data.train, data.validation)
    )
    if added and longest + added > encoder.max_length:
        raise UsageError(
            f"the method adds {added} positions to each sequence, and the encoder reads {encoder.max_length} at most",
            expected=f"sequences of {encoder.max_length - added} sub-tokens or fewer",
            received=f"one of {longest}",
            remedy=f"encode again with --max-length {encoder.max_length - added}, or add fewer",
        )


def live_data(
    data: TaskData,
    source: TokenSource,
    encoder: Encoder,
    layers: Sequence[int],
    batching: Batching,
    ranks: Ranks = ALONE,
) -> TaskData:
    """The same splits over live states; ``layers`` are those that the store, or each of its mix, has."""
    made: dict[int, TaskSplit] = {}

    def live(split: TaskSplit) -> TaskSplit:
        if id(split) not in made:
            states = LiveStates(encoder, source.of(split.states), layers, batching, ranks)
            made[id(split)] = split.over(states, split.rows)
        return made[id(split)]

    def of_parts(each: TaskData) -> TaskData:
        others: Mapping[str, TaskData] = {name: of_parts(other) for name, other in each.others.items()}
        return dataclasses.replace(
            each,
            train=live(each.train),
            validation=live(each.validation),
            test=None if each.test is None else live(each.test),
            tests={name: live(split) for name, split in each.tests.items()},
            others=others,
        )

    return of_parts(data)
