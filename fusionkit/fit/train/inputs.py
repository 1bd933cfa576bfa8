"""The inputs of a unit of runs: its draws as minibatches, and the part of validation that it is scored on.

Inputs that are read in every epoch are held in memory where they fit, on a GPU where the runs are trained on one. The
rest is read from the store each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from fusionkit.dataset.draws import draw_of, watched_split
from fusionkit.dataset.split import ChunkedStates, TaskSplit, tasks_joined
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.loader.gpu import GpuLoader, GpuLoaders
from fusionkit.fit.loader.minibatches import (
    HELD_BYTES,
    GatherLoader,
    Layers,
    SeparateLoaders,
    held_bytes,
    load_all_into_memory,
    load_into_memory,
)
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.fit.loader.streaming import StreamingLoader
from fusionkit.fit.train.decisions import ScoreBlock, blocks, score_blocks
from fusionkit.fit.train.schedule import length_of
from fusionkit.fit.vectorized.width import room
from fusionkit.fusions import sees_examples, takes_longest
from fusionkit.heads import decides_rows_alone
from fusionkit.ragged import IntArray
from fusionkit.specs import ONE_TOKEN, WINDOW, RunSpec
from fusionkit.tasks import parts_of


class UnitInputs:
    """The minibatches of all data seeds, and the blocks of validation.

    Args:
        draws: the training examples of each data seed. layers: the positions, among the stored layers, of all layers
            that any run reads. sharers: the number of processes that share the memory. most_held: bytes of states
            that a CPU may hold in memory; None is :data:`HELD_BYTES`.

    Attributes:
        stored: the watched part of validation, as it is stored. watched: the same, in memory where ``holds_watched``.
        window_bytes: bytes of the windows that are read while others are trained on.
    """

    def __init__(
        self,
        specs: Sequence[RunSpec],
        draws: Mapping[int, TaskSplit],
        layers: Layers,
        data: TaskData,
        hidden: int,
        sharers: int,
        device: torch.device,
        most_held: int | None = None,
    ) -> None:
        self._draws, self._layers, self._data, self._hidden = draws, layers, data, hidden
        self._device = device
        repeated = any(length_of(spec, len(draws[spec.data_seed])).epochs > 1 for spec in specs)
        # Bytes that inputs may take: on a GPU half of what is free, the other half is for the runs.
        free = None if device.type == "cpu" else room(device, sharers)
        most = free // 2 if free is not None else HELD_BYTES if most_held is None else most_held
        self._room = most if repeated else 0  # what is read once is not held
        spec, orders = specs[0], {seed: Sampler(draw, specs[0].order, seed) for seed, draw in draws.items()}
        streamed = {
            seed: StreamingLoader(draw, layers, orders[seed], spec.batch_size, device)
            for seed, draw in draws.items()
            if spec.order == WINDOW and isinstance(draw.states, ChunkedStates) and held_bytes(draw, layers) > self._room
        }
        self.window_bytes = sum(each.memory for each in streamed.values())
        if device.type == "cpu":  # windows lie in the host's memory
            self._room -= self.window_bytes
        self.stored = watched_split(specs[0], data)
        shown = blocks(self.stored, device)
        self.watched, self._watched_layers = self._held(self.stored, np.concatenate(shown) if shown else None)
        self.holds_watched = self.watched is not self.stored
        self._blocks: list[ScoreBlock] | None = None  # of a split in a GPU's memory, kept for every epoch
        if device.type != "cpu" and self.holds_watched:
            self._room -= held_bytes(self.stored, layers) // 2  # a copy in bfloat16
        self.loader = self._on_gpu(specs, orders) or SeparateLoaders(
            streamed
            | {
                seed: GatherLoader(*self._held(draw), orders[seed], spec.batch_size, device)
                for seed, draw in draws.items()
                if seed not in streamed
            }
        )

    def blocks(self) -> Iterable[ScoreBlock]:
        """The watched part of validation, block by block."""
        if not self.holds_watched or self._device.type == "cpu":
            return score_blocks(self.watched, self._watched_layers, self._device)
        if self._blocks is None:
            with torch.inference_mode():
                self._blocks = list(score_blocks(self.watched, self._watched_layers, self._device))
        return self._blocks

    def _on_gpu(self, specs: Sequence[RunSpec], orders: Mapping[int, Sampler]) -> GpuLoader | GpuLoaders | None:
        """Minibatches on a GPU that holds all draws, where their minibatches have one shape or may be padded to one;
        else None. With dropout they may not be padded to the shape of other draws: a mask of more rows has other
        numbers than that of a run alone. Where scores depend on where examples end, each draw has its own minibatches.
        """
        draws, whole, pooled = self._draws, sees_examples(specs[0].fusion), specs[0].pool not in (None, *ONE_TOKEN)
        if self._device.type == "cpu" or self._data.lm_head is not None:
            return None
        if len({len(draw) for draw in draws.values()}) > 1 or not all(map(is_plain, draws.values())):
            return None
        if pooled and any(draw.read is not None for draw in draws.values()):
            return None
        dense = all(draw.is_dense for draw in draws.values())
        apart = (whole or pooled) and not dense
        if not dense and not all(
            decides_rows_alone(spec.head) and (takes_longest(spec.fusion) or not whole) and (apart or not spec.dropout)
            for spec in specs
        ):
            return None
        most = min(sum(len(draw.rows) for draw in draws.values()), len(self._data.train.rows))
        size = 4 * most * len(self._layers) * self._hidden
        if size > self._room:
            return None
        self._room -= size
        held = dict(zip(draws, load_all_into_memory(list(draws.values()), self._layers, self._device), strict=True))
        told = orders, specs[0].batch_size, self._device, pooled, whole
        if apart:
            return GpuLoaders({seed: GpuLoader({seed: draw}, *told) for seed, draw in held.items()})
        return GpuLoader(held, *told)

    def _held(self, split: TaskSplit, order: IntArray | None = None) -> tuple[TaskSplit, Layers]:
        """A split and its layers' positions: unchanged, or read into memory in this order where there is room."""
        size = held_bytes(split, self._layers)
        if size > self._room:
            return split, self._layers
        self._room -= size
        return load_into_memory(split, self._layers, order, self._device), tuple(range(len(self._layers)))


def is_plain(draw: TaskSplit) -> bool:
    """Whether each example is one sequence of one or more rows, read for one head."""
    return draw.sides == 1 and not draw.others and bool((np.diff(draw.offsets) > 0).all())


def training_split(spec: RunSpec, data: TaskData) -> TaskSplit:
    """The training examples of a run; errors as :func:`~fusionkit.dataset.draws.draw_of`."""
    if data.apart and (spec.shots, spec.draw_ids) != (None, None):
        parts = parts_of(spec)
        return tasks_joined({name: training_split(parts[name], part) for name, part in data.parts.items()}, apart=True)
    examples = draw_of(spec, data)
    return data.train if examples is None else data.train.subset(examples)
