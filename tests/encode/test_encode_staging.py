"""Staging: rows put in the order computed come out at their places, whatever lay in the memory before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fusionkit.encode.output_blocks import TORCH_DTYPES, PartBuffer, RowBlock, is_finite, rounded
from fusionkit.store.layout import StatesLayout

LAYERS, HIDDEN = 3, 6
CPU = torch.device("cpu")
DTYPES = ["float16", "bfloat16", "float32", "int8"]
CARD = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: torch.cuda sees none")
)


def layout_of(rows: int, dtype: str, hidden: int = HIDDEN, layers: int = LAYERS) -> StatesLayout:
    """Of a split with one chunk of so many rows."""
    return StatesLayout(rows, layers, hidden, rows, dtype)


def as_stored(rows: NDArray[np.float32], dtype: str) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
    """Rows ``[n, hidden]`` in a precision, by NumPy: for int8 the values and their scales."""
    if dtype == "int8":
        scales = (np.abs(rows).max(axis=1) / np.float32(127)).astype(np.float32)
        divisor = np.where(scales > 0, scales, 1).astype(np.float32)
        return np.rint(rows / divisor[:, None]).astype(np.int8), scales
    if dtype == "bfloat16":  # to nearest, ties to even, in the upper half of the bits
        bits = rows.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16), None
    return rows.astype(dtype), None


def fill(buffer: PartBuffer, layout: StatesLayout, seed: int, fraction: float = 0.7) -> dict[str, NDArray[Any]]:
    """Put batches of rows at random places, in random order, and scatter the same rows plainly."""
    rng, dtype = np.random.default_rng(seed), layout.dtype
    height, width = layout.rows_per_chunk, layout.hidden
    expected: dict[str, NDArray[Any]] = {
        "hidden_states": np.zeros((layout.layers, height, width), "uint16" if dtype == "bfloat16" else dtype)
    }
    if dtype == "int8":
        expected["scales"] = np.zeros((layout.layers, height), np.float32)
    buffer.begin(layout)
    chosen = rng.permutation(height)[: int(height * fraction)]
    for targets in np.array_split(chosen, 4):
        for layer in range(layout.layers):
            rows = (rng.normal(size=(len(targets), width)) * 10.0 ** rng.integers(-3, 4)).astype(np.float32)
            tensor = torch.from_numpy(rows).to(buffer.states.device)
            buffer.put(layer, tensor)
            values, scales = as_stored(rows, dtype)
            if tensor.is_cuda and dtype == "int8":  # a card divides by 127 as it multiplies: another last bit
                values, scales = (np.asarray(each.cpu()) for each in rounded(tensor, torch.int8) if each is not None)
            expected["hidden_states"][layer, targets] = values
            if scales is not None:
                expected["scales"][layer, targets] = scales
        buffer.assign(targets)
    return expected


def assert_bits(block: RowBlock, expected: dict[str, NDArray[Any]]) -> None:
    found = block.arrays()
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert found[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(4))
def test_rows_in_any_order_are_a_plain_scatter_bit_for_bit(dtype: str, seed: int) -> None:
    layout = layout_of(40, dtype)
    buffer = PartBuffer([layout], TORCH_DTYPES[dtype], CPU)
    expected = fill(buffer, layout, seed)
    assert_bits(buffer.start_transfer()(None), expected)


# The chunks of one buffer after another: larger, smaller, fuller, emptier, of another width.
SEQUENCES = [
    [(40, HIDDEN, 1.0), (40, HIDDEN, 0.3), (40, HIDDEN, 0.0), (40, HIDDEN, 1.0)],
    [(40, HIDDEN, 1.0), (7, HIDDEN, 0.5), (40, HIDDEN, 0.5), (8, HIDDEN, 0.5), (7, HIDDEN, 0.9)],
    [(40, HIDDEN, 1.0), (9, 2, 0.4), (1, HIDDEN, 0.0), (40, 2, 0.8)],
]


@pytest.mark.parametrize("device", ["cpu", CARD])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_nothing_of_an_older_part_is_left_in_a_newer_one(
    dtype: str, sequence: list[tuple[int, int, float]], device: str
) -> None:
    """Two buffers in turn and one block for all, as the job has them; memory begins as NaN or its like."""
    layouts = [layout_of(rows, dtype, hidden) for rows, hidden, _ in sequence]
    buffers = [PartBuffer(layouts, TORCH_DTYPES[dtype], torch.device(device)) for _ in range(2)]
    for buffer in buffers:
        fill(buffer, layouts[0], seed=99, fraction=1.0)
        buffer.states.view(torch.int8)[:] = -1  # NaN in every float, -1 in int8
        if buffer.scales is not None:
            buffer.scales[:] = torch.nan
    kept: RowBlock | None = None
    for turn, (layout, (_, _, fraction)) in enumerate(zip(layouts, sequence, strict=True)):
        buffer = buffers[turn % 2]
        expected = fill(buffer, layout, turn, fraction)
        kept = buffer.start_transfer()(kept)
        assert_bits(kept, expected)
        assert is_finite(kept)


def test_every_bfloat16_is_stored_as_the_nearest_float16() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
    rows = torch.from_numpy(every).view(torch.bfloat16).view(-1, 64)
    buffer = PartBuffer([layout := layout_of(len(rows), "float16", hidden=64, layers=1)], torch.float16, CPU)
    buffer.begin(layout)
    buffer.put(0, rows)
    with np.errstate(over="ignore"):
        wanted = (every.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float16)
    np.testing.assert_array_equal(buffer.states[0, :-1].flatten().numpy(), wanted)  # NaN is NaN


@pytest.mark.parametrize("device", ["cpu", CARD])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_row_that_is_no_number_is_seen(dtype: str, device: str, value: float) -> None:
    layout = layout_of(40, dtype)
    buffer = PartBuffer([layout], TORCH_DTYPES[dtype], torch.device(device))
    fill(buffer, layout, seed=0)
    (buffer.states if buffer.scales is None else buffer.scales)[1, 3] = value
    assert not is_finite(buffer.start_transfer()(None))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: torch.cuda sees none")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_card_hands_over_the_bytes_that_a_cpu_does(dtype: str) -> None:
    """Pinned memory and a stream of its own, while the next part is put into another buffer already."""
    layout = layout_of(2000, dtype, hidden=64)
    card = [PartBuffer([layout], TORCH_DTYPES[dtype], torch.device("cuda")) for _ in range(2)]
    arriving: list[tuple[Callable[[RowBlock | None], RowBlock], dict[str, NDArray[Any]]]] = []
    for part in range(6):
        if part >= 2:  # the writer has been there
            arrive, expected = arriving.pop(0)
            block = arrive(None)
            assert block.states.is_pinned()
            assert_bits(block, expected)
        filled = fill(card[part % 2], layout, part)
        arriving.append((card[part % 2].start_transfer(), filled))
    for arrive, expected in arriving:
        assert_bits(arrive(None), expected)


def int8_of(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows ``[n, hidden]`` through a buffer of int8."""
    layout = layout_of(len(rows), "int8", rows.shape[1], layers=1)
    buffer = PartBuffer([layout], torch.int8, CPU)
    buffer.begin(layout)
    buffer.put(0, torch.from_numpy(rows))
    buffer.assign(np.arange(len(rows)))
    found = buffer.start_transfer()(None).arrays()
    return found["hidden_states"][0].astype(np.int8), found["scales"][0].astype(np.float32)


def test_int8_is_rounded_half_to_even_on_a_scale_of_a_127th_of_the_largest() -> None:
    rows = np.array(
        [
            [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5],
            [-254, 1, 3, 5, -1, -3, -5, 253],
            [0, 0, 0, 0, 0, 0, 0, -0.0],
            [3e38, 1, -1, 1e30, 0, 1.2e36, -3e38, 3e36],
            [0, 0, 0, 2.0**-130, 0, 0, 0, 0],
        ],
        np.float32,
    )
    values, scales = int8_of(rows)
    assert values[:4].tolist() == [
        [127, 0, 2, 2, 0, -2, -2, 126],
        [-127, 0, 2, 2, 0, -2, -2, 126],
        [0] * 8,
        [127, 0, 0, 0, 0, 1, -127, 1],
    ]
    assert scales[:3].tolist() == [1, 2, 0]
    assert scales[3] == np.float32(3e38) / np.float32(127)
    # A 127th of the last row's number is no normal one.
    assert scales[4] == np.finfo(np.float32).tiny
    assert values[4].tolist() == [0] * 8


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 1e-45, -1e-40, 1.5e-36])


@given(st.lists(st.lists(FINITE, min_size=5, max_size=5), min_size=1, max_size=4), st.integers(-40, 38))
def test_int8_is_off_by_half_a_scale_at_most(numbers: list[list[float]], exponent: int) -> None:
    rows = np.array(numbers, np.float32)
    with np.errstate(over="ignore", under="ignore"):
        shrunk = (rows / np.abs(rows).max(initial=1.0) * np.float32(10.0**exponent)).astype(np.float32)
    for given_rows in (rows, shrunk):
        values, scales = int8_of(given_rows)
        wide = scales.astype(np.float64)[:, None]
        # Half a step, and the rounding of the quotient: 127 float32 steps of 2⁻²⁴.
        assert (np.abs(given_rows.astype(np.float64) - values * wide) <= wide * (0.5 + 127 * 2.0**-23)).all()
        assert np.abs(values.astype(int)).max() <= 127
        largest = np.abs(given_rows).max(axis=1)
        usual = largest > 1e-35
        assert (scales[usual] == largest[usual] / np.float32(127)).all()
        assert (np.abs(values.astype(int)).max(axis=1)[usual] == 127).all()
        assert ((scales == 0) == (largest == 0)).all()


# One number each, beside zeros.
SPECIAL = ["nan", "-nan", "inf", "-inf", "largest", "-largest", "smallest", "-0.0"]


def special(name: str, dtype: torch.dtype) -> float:
    facts = torch.finfo(dtype)
    sign = -1.0 if name.startswith("-") else 1.0
    value = {"nan": float("nan"), "inf": float("inf"), "largest": facts.max, "smallest": facts.tiny, "0.0": 0.0}
    return float(np.copysign(value[name.removeprefix("-")], sign))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", SPECIAL)
def test_a_single_number_that_is_none_is_seen_anywhere(dtype: str, name: str) -> None:
    of = TORCH_DTYPES[dtype]
    for at in ((0, 0, 0), (1, 2, 3), (2, 4, 5)):
        states = torch.zeros(3, 5, 6, dtype=of)
        states[at] = special(name, of)
        assert is_finite(RowBlock(states, None)) == (name.removeprefix("-") not in ("nan", "inf"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@given(bits=st.lists(st.integers(0, (1 << 32) - 1), max_size=12))
def test_whether_bits_are_numbers_is_seen_as_torch_sees_it(dtype: str, bits: list[int]) -> None:
    of = TORCH_DTYPES[dtype]
    unsigned = np.array(bits, np.uint32).astype(np.uint32 if dtype == "float32" else np.uint16)
    states = torch.from_numpy(unsigned.view(np.int32 if dtype == "float32" else np.int16)).view(of)
    block = RowBlock(states.reshape(1, len(bits), 1), None)
    assert is_finite(block) == bool(torch.isfinite(states).all())


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_int8_cannot_hold_shows_in_its_scale(value: str) -> None:
    rows = np.ones((3, 4), np.float32)
    layout = layout_of(3, "int8", 4, layers=1)
    buffer = PartBuffer([layout], torch.int8, CPU)
    buffer.begin(layout)
    rows[1, 2] = float(value)
    buffer.put(0, torch.from_numpy(rows))
    buffer.assign(np.array([2, 0, 1]))
    block = buffer.start_transfer()(None)
    assert not is_finite(block)
    assert block.scales is not None
    assert torch.isfinite(block.scales).tolist() == [[False, True, True]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_without_a_number_is_finite(dtype: str) -> None:
    scales = torch.zeros(3, 0) if dtype == "int8" else None
    assert is_finite(RowBlock(torch.zeros(3, 0, 6, dtype=TORCH_DTYPES[dtype]), scales))
