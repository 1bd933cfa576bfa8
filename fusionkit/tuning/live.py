"""States that are computed on demand, by an encoder that may be in training.

They replace a store's states in a task's splits, so that minibatches, decisions and scores are made as with stored
states. Where gradients are on, they reach the encoder. States are computed from the sub-tokens, or from the stored
states of a layer; that layer and those below it then have their stored states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.split import ChunkedStates, States, TaskSplit, tasks_joined
from fusionkit.dataset.task_data import TaskData
from fusionkit.encode.batching import OVERHEAD, TOKENS, Batching
from fusionkit.encoder import Encoder
from fusionkit.errors import UsageError
from fusionkit.fusions import sees_examples
from fusionkit.methods.attached import Attached
from fusionkit.ragged import IntArray, flat_rows
from fusionkit.tuning.passes import FromLayer, FromText
from fusionkit.tuning.ranks import ALONE, Ranks
from fusionkit.tuning.tokens import TokenSource
from fusionkit.tuning.upper_layers import UpperLayers

# A minibatch, or a batch that is scored, is computed in pieces of sequences of similar length. On a CPU a piece has a
# higher fixed cost than in an encode: the backward pass and dropout are many small operations.
BATCHING = {device: Batching(tokens, max(OVERHEAD[device], 128)) for device, tokens in TOKENS.items()}


def batching_of(device: torch.device) -> Batching:
    """The batching on a device: that of a CPU on all devices that have none of their own, as in an encode."""
    return BATCHING.get(device.type, BATCHING["cpu"])


@dataclasses.dataclass(frozen=True, eq=False)
class LiveStates:
    """The states of a split's rows, ``[rows, layers, hidden]``.

    Attributes:
        passes: what computes them. layers: the encoder's layer at each position.
        ranks: the processes that ask for the same rows at the same time; without gradients each computes a part.
    """

    passes: FromText | FromLayer
    layers: Sequence[int]
    ranks: Ranks = ALONE

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, layers, hidden."""
        return len(self.passes.tokens.token_ids), len(self.layers), self.passes.encoder.hidden

    def gather(self, rows: IntArray, layers: Sequence[int] | None = None) -> Tensor:
        """Chosen rows and positions of layers, float32 ``[len(rows), layers, hidden]``, on the encoder's device."""
        positions = range(len(self.layers)) if layers is None else layers
        wanted, tokens = [self.layers[at] for at in positions], self.passes.tokens
        device, found, places = self.passes.encoder.device, list[Tensor](), list[IntArray]()
        sequences, which = np.unique(tokens.sequences_of(rows), return_inverse=True)
        order = np.argsort(which, kind="stable")  # rows of one sequence side by side
        bounds = np.searchsorted(which[order], np.arange(len(sequences) + 1))
        lengths = tokens.padded_lengths(sequences)
        together = self.ranks.count > 1 and not torch.is_grad_enabled()
        for number, piece in enumerate(batching_of(device).cut(lengths)):
            if together and number % self.ranks.count != self.ranks.rank:
                continue
            states = self.passes(sequences[piece], wanted)  # per layer [piece, length, hidden]
            mine = np.concatenate([order[bounds[each] : bounds[each + 1]] for each in piece])
            counts = (bounds[1:] - bounds[:-1])[piece]
            inside = rows[mine] - np.repeat(tokens.offsets[sequences[piece]], counts)
            length = int(lengths[piece].max())
            source = torch.from_numpy(np.repeat(np.arange(len(piece)), counts) * length + inside).to(device)
            # [piece, length, hidden] → [piece · length, hidden] → [rows here, hidden], layers side by side
            taken = [states[layer].flatten(0, 1).index_select(0, source).float() for layer in wanted]
            found.append(torch.stack(taken, 1))
            places.append(mine)
        if together:
            whole = torch.zeros(len(rows), len(wanted), self.shape[2], device=device)
            for at, part in zip(places, found, strict=True):
                whole[torch.from_numpy(at).to(device)] = part
            return self.ranks.sum(whole)  # exact: each row is one rank's states plus zeros
        if not found:
            return torch.empty(0, len(wanted), self.shape[2], device=device)
        back = torch.from_numpy(np.argsort(np.concatenate(places))).to(device)
        return torch.cat(found).index_select(0, back)  # [len(rows), layers, hidden]


@dataclasses.dataclass(frozen=True, eq=False)
class StoredStart(LiveStates):
    """Live states computed from a split's stored ones, which can be read a window at a time."""

    passes: FromLayer

    def chunk_of(self, rows: IntArray) -> IntArray:
        """The number of the chunk that each row lies in."""
        return self._stored.chunk_of(rows)

    def load(self, rows: IntArray, layers: Sequence[int], reuse: StoredStart | None = None) -> StoredStart:
        """Read the stored states of these rows' whole sequences into memory; live states that have only these."""
        passes, tokens = self.passes, self.passes.tokens
        sequences = np.unique(tokens.sequences_of(rows))
        needed = [passes.layers.index(layer) for layer in passes.read([self.layers[at] for at in layers])]
        old = None if reuse is None else reuse.passes.stored
        held = self._stored.load(flat_rows(tokens.offsets, sequences)[0], needed, old)
        return dataclasses.replace(self, passes=dataclasses.replace(passes, stored=held))

    @property
    def _stored(self) -> ChunkedStates:
        assert isinstance(self.passes.stored, ChunkedStates)
        return self.passes.stored


def longest_of(source: TokenSource, data: TaskData) -> int:
    """The sub-tokens of the longest sequence of the splits."""
    scored = [each for each in (data.test, *data.tests.values()) if each is not None]
    return max(
        int(np.diff(source.of(split.states).offsets).max(initial=0))
        for whole in (data.train, data.validation, *scored)
        for split in whole.streams
    )


def refuse_long(reads: int, added: int, longest: int) -> None:
    """UsageError where a method puts so many positions in front of sequences that the encoder, which reads so many at
    most, cannot read the longest.
    """
    if added and longest + added > reads:
        raise UsageError(
            f"the method adds {added} positions to each sequence, and the encoder reads {reads} at most",
            expected=f"sequences of {reads - added} sub-tokens or fewer",
            received=f"one of {longest}",
            remedy=f"encode again with --max-length {reads - added}, or add fewer",
        )


def longest_read(encoder: Encoder, attached: Attached) -> int:
    """The sub-tokens of the longest text that an encoder reads with a method in effect: an encoder with a table of
    positions needs some of them for what the method adds.
    """
    table = attached.structure.most_positions
    return encoder.max_length if table is None else min(encoder.max_length, table - attached.positions_added)


def live_data(
    data: TaskData,
    source: TokenSource,
    encoder: Encoder,
    layers: Sequence[int],
    ranks: Ranks = ALONE,
    upper: UpperLayers | None = None,
    use: Callable[[str], None] | None = None,
    fusion: str = "last",
) -> TaskData:
    """The same splits over live states.

    Args:
        layers: the layers of the store, or of each store of a mix. upper: the layers that are computed, from the
            stored states of the layer below; None computes all. use: called with the name of a task before its states
            are computed. fusion: what reads the states.
    """
    made: dict[int, tuple[TaskSplit, TaskSplit]] = {}  # by id; with the original, so that no other split gets its id

    def states_of(split: TaskSplit) -> States:
        tokens, how = source.of(split.states), (layers, ranks)
        before = [] if use is None else [partial(use, split.name)]
        if upper is None:
            return LiveStates(FromText(encoder, tokens, *before), *how)
        return StoredStart(FromLayer(upper, encoder, tokens, split.states, layers, *before), *how)

    def live(split: TaskSplit) -> TaskSplit:
        if id(split) not in made:
            if split.apart:
                found = tasks_joined({name: live(part) for name, part in split.parts.items()}, apart=True)
            else:
                placed = source.rows_of(split, sees_examples(fusion))
                found = placed.over(states_of(split), placed.rows)
            made[id(split)] = split, found
        return made[id(split)][1]

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
