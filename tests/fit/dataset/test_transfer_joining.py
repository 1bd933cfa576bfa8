"""Splits of several stores as one: every row and every label is that of its own store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fusionkit.dataset.concatenation import ConcatenatedStates, join_splits
from fusionkit.dataset.draws import share_draw
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.store import HiddenStates
from fusionkit.store.chunk_access import MappedChunks
from fusionkit.store.chunks import write_chunk
from fusionkit.store.layout import StatesLayout, chunk_path

Toy = Callable[..., TaskData]
WIDTH = 4


def stored(folder: Path, rows: int, layers: int, dtype: str) -> tuple[HiddenStates, NDArray[np.float32]]:
    """Chunks of five rows, and the same numbers ``[layers, rows, WIDTH]`` as float32."""
    values = np.random.default_rng(rows).integers(-99, 99, (layers, rows, WIDTH)).astype(np.float32)
    layout = StatesLayout(rows, layers, WIDTH, 5, dtype)
    for chunk in range(layout.chunks):
        block = values[:, 5 * chunk : 5 * chunk + 5]
        raw = block.view(np.uint32) >> 16 if dtype == "bfloat16" else block  # such whole numbers are exact in each
        kind: Any = {"bfloat16": np.uint16}.get(dtype, dtype)
        write_chunk(chunk_path(folder, "train", chunk), raw.astype(kind), layout.arrays[0])
    return HiddenStates(MappedChunks(folder, "train", layout), layout), values


def joined(tmp_path: Path, dtypes: tuple[str, ...]) -> tuple[ConcatenatedStates, NDArray[np.float32]]:
    """Three splits of 7, 12 and 3 rows; of 5, 3 and 3 layers, three of them shared; and the shared numbers of all."""
    shapes, positions = ((7, 5), (12, 3), (3, 3)), ([0, 2, 4], [0, 1, 2], [2, 0, 1])
    parts = [stored(tmp_path / str(k), *shape, dtypes[k]) for k, shape in enumerate(shapes)]
    values = [values[at] for (_, values), at in zip(parts, positions, strict=True)]
    return ConcatenatedStates([states for states, _ in parts], positions), np.concatenate(values, axis=1)


@pytest.mark.parametrize(
    ("dtypes", "result"),
    [
        (("float16",) * 3, torch.float16),
        (("bfloat16",) * 3, torch.bfloat16),
        (("float16", "float32", "bfloat16"), torch.float32),
    ],
)
def test_a_joined_row_is_the_row_of_its_own_split(tmp_path: Path, dtypes: tuple[str, ...], result: torch.dtype) -> None:
    states, values = joined(tmp_path, dtypes)
    assert states.shape == (22, 3, WIDTH)
    for rows in ([3], [21, 0, 7, 6, 18, 19, 7], list(range(22)), list(range(21, -1, -1)), [8, 12], []):
        for layers in (None, [1], [2, 0]):
            found = states.gather(np.array(rows, dtype=np.int64), layers)
            assert found.shape == (len(rows), 3 if layers is None else len(layers), WIDTH)
            wanted = values[[0, 1, 2] if layers is None else layers][:, rows]  # [layers, rows, WIDTH]
            for k in range(len(rows)):
                assert found[k].float().tolist() == wanted[:, k].tolist()
    assert states.gather(np.arange(22)).dtype == result


@pytest.mark.parametrize("row", [-1, 22])
def test_a_row_that_no_split_has_is_refused(tmp_path: Path, row: int) -> None:
    states, _ = joined(tmp_path, ("float16",) * 3)
    with pytest.raises(IndexError, match=f"rows .*{row}.* of 22"):
        states.gather(np.array([3, row], dtype=np.int64))


def check_batches(together: TaskSplit, alone: list[TaskSplit]) -> None:
    """Each example of the joined split, by itself and among others, is the one of its part."""
    at = [(part, k) for part in alone for k in range(len(part))]
    assert len(together) == len(at)
    order = np.random.default_rng(0).permutation(len(at))
    for chosen in (together.batch(order, (0, 2)), together.subset(order).batch(np.arange(len(at)), (0, 2))):
        pieces = [at[i][0].batch(np.array([at[i][1]]), (0, 2)) for i in order]
        assert torch.equal(chosen.states, torch.cat([piece.states for piece in pieces]))
        assert torch.equal(chosen.targets, torch.cat([piece.targets for piece in pieces]))
        assert chosen.offsets.diff().tolist() == [n for piece in pieces for n in piece.offsets.diff().tolist()]
        starts = np.cumsum([0, *(len(p.states) for p in pieces)]).tolist()
        read = [torch.arange(len(p.states)) if p.read is None else p.read for p in pieces]
        expected = torch.cat([start + own for start, own in zip(starts, read, strict=False)])
        assert chosen.read is None or torch.equal(chosen.read, expected)
        assert chosen.read_offsets.diff().tolist() == [n for p in pieces for n in p.read_offsets.diff().tolist()]


@pytest.mark.parametrize("words", [False, True])
def test_joined_examples_are_those_of_their_splits(toy: Toy, words: bool) -> None:
    data = toy(words=words)
    assert data.test is not None
    parts = [("a", data.train, (0, 1, 2)), ("b", data.test, (0, 1, 2))]
    together = join_splits(parts)
    check_batches(together, [data.train, data.test])
    assert together.gold == data.train.gold + data.test.gold
    assert together.ids == [f"a/{i}" for i in data.train.ids] + [f"b/{i}" for i in data.test.ids]
    if words:
        assert together.kept is not None
        assert together.word_offsets is not None
        assert together.word_offsets[-1] == len(together.kept) == len(together.targets)


def test_rows_that_the_head_does_not_read_stay_so(toy: Toy) -> None:
    data = toy(words=True)
    rng = np.random.default_rng(1)
    some = rng.random(len(data.train.rows)) < 0.7
    bounds = np.concatenate([[0], np.cumsum(some)])[data.train.offsets]
    tags = [data.train.gold[i][: bounds[i + 1] - bounds[i]] for i in range(len(data.train))]
    narrow = replace(
        data.train, read=some, targets=data.train.targets[some], gold=tags, kept=np.ones(some.sum(), dtype=bool),
        word_offsets=bounds,
    )  # fmt: skip
    together = join_splits([("a", data.validation, (0, 1, 2)), ("b", narrow, (0, 1, 2))])
    assert together.read is not None
    assert together.read.sum() == len(data.validation.rows) + some.sum()
    check_batches(together, [data.validation, narrow])


def test_pairs_stored_as_two_stay_pairs(toy: Toy) -> None:
    data = toy(examples=60)
    half = np.arange(30)
    pairs = replace(
        data.train, targets=data.train.targets[half], gold=data.train.gold[:30], ids=data.train.ids[:30], sides=2
    )
    together = join_splits([("a", pairs, (0, 1, 2)), ("b", pairs.subset(half[:7]), (0, 1, 2))])
    assert (len(together), together.sides, len(together.offsets)) == (37, 2, 2 * 37 + 1)
    check_batches(together, [pairs, pairs.subset(half[:7])])


def test_a_share_is_drawn_by_its_seed_alone_without_repeats() -> None:
    drawn = [share_draw(80, 20, seed).tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(found == sorted(set(found)) and len(found) == 20 and found[0] >= 0 and found[-1] < 80 for found in drawn)
    assert set(share_draw(80, 4, 0).tolist()) < set(drawn[0])


def test_a_share_is_drawn_uniformly() -> None:
    counts = np.zeros(40)
    for seed in range(2000):
        counts[share_draw(40, 4, seed)] += 1
    # Each is drawn 200 times on average, with a standard deviation of √(2000 · 0.1 · 0.9) = 13.4.
    assert counts.sum() == 8000
    assert 200 - 5 * 13.4 < counts.min() <= counts.max() < 200 + 5 * 13.4
