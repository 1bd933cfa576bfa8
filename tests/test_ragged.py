"""Ragged batches, against one loop over the examples."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from fusionkit.ragged import (
    Ragged,
    flat_rows,
    offsets_of,
    ordered_segment_mean,
    ordered_segment_sum,
    pad,
    segment_ids,
    segment_max,
    segment_mean,
    segment_softmax,
    segment_sum,
)

LENGTHS = [[3, 0, 1, 4], [0], [], [0, 0, 0], [5], [1, 1, 1], [0, 2], [2, 0]]


def rows_of(lengths: list[int], width: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Random values ``[rows, width]`` and offsets for these lengths."""
    generator = torch.Generator().manual_seed(sum(lengths) + len(lengths))
    values = torch.randn(sum(lengths), width, generator=generator)
    return values, torch.from_numpy(offsets_of(np.array(lengths, dtype=np.int64)))


def test_the_table_of_lengths_has_empty_batches_and_empty_examples() -> None:
    assert len(LENGTHS) == 8
    assert [] in LENGTHS
    assert [0] in LENGTHS


@pytest.mark.parametrize("lengths", LENGTHS)
def test_offsets_are_half_open_and_start_at_zero(lengths: list[int]) -> None:
    offsets = offsets_of(np.array(lengths, dtype=np.int64))
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]


@pytest.mark.parametrize("chosen", [[], [0], [3, 0], [1], [2, 2, 1, 3], [3, 2, 1, 0]])
def test_flat_rows_are_those_of_the_examples_in_the_order_asked_for(chosen: list[int]) -> None:
    row_offsets = np.array([0, 3, 3, 4, 8], dtype=np.int64)
    rows, offsets = flat_rows(row_offsets, np.array(chosen, dtype=np.int64))
    pieces = [list(range(row_offsets[i], row_offsets[i + 1])) for i in chosen]
    assert rows.tolist() == [row for piece in pieces for row in piece]
    assert [rows[a:b].tolist() for a, b in pairwise(offsets)] == pieces
    assert rows.dtype == np.int64


@pytest.mark.parametrize("lengths", LENGTHS)
def test_segment_ids_number_each_row_by_its_example(lengths: list[int]) -> None:
    _, offsets = rows_of(lengths)
    assert segment_ids(offsets, sum(lengths)).tolist() == [i for i, n in enumerate(lengths) for _ in range(n)]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_means_and_maxima_are_those_of_a_loop_and_zero_without_rows(lengths: list[int]) -> None:
    values, offsets = rows_of(lengths)
    pieces = [values[offsets[i] : offsets[i + 1]] for i in range(len(lengths))]
    mean, largest = segment_mean(values, offsets), segment_max(values, offsets)
    assert mean.shape == largest.shape == (len(lengths), 4)
    for i, piece in enumerate(pieces):
        expected = piece.mean(dim=0) if len(piece) else torch.zeros(4)
        torch.testing.assert_close(mean[i], expected)
        assert torch.equal(largest[i], piece.amax(dim=0) if len(piece) else torch.zeros(4))


@pytest.mark.parametrize("size", [1.0, 1e4])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_sums_and_softmax_are_those_of_a_loop(lengths: list[int], size: float) -> None:
    values, offsets = rows_of(lengths)
    values = size * values
    pieces = [values[a:b] for a, b in pairwise(offsets.tolist())]
    sums = torch.stack([piece.sum(0) for piece in pieces]) if pieces else torch.zeros(0, 4)
    assert torch.allclose(segment_sum(values, offsets), sums)
    shares = torch.cat([piece.softmax(0) for piece in pieces]) if pieces else values
    assert torch.allclose(segment_softmax(values, offsets), shares, atol=1e-6)


@pytest.mark.parametrize("lengths", [*LENGTHS, [40, 0, 300]])
def test_sums_of_a_gpus_encode_are_made_in_the_order_of_a_cpus(lengths: list[int]) -> None:
    values, offsets = rows_of(lengths)
    values = values * (16 ** (torch.arange(len(values)) % 5)[:, None])  # in another order the last bits would differ
    assert torch.equal(ordered_segment_sum(values, offsets), segment_sum(values, offsets))
    assert torch.equal(ordered_segment_mean(values, offsets), segment_mean(values, offsets))


def test_the_maximum_of_negative_rows_is_negative() -> None:
    values = torch.tensor([[-3.0], [-1.0], [-2.0]])
    assert segment_max(values, torch.tensor([0, 2, 3])).tolist() == [[-1.0], [-2.0]]


def test_a_mean_gives_each_of_its_rows_an_equal_share_of_the_gradient() -> None:
    values, offsets = rows_of([3, 0, 1])
    values.requires_grad_()
    (gradient,) = torch.autograd.grad(segment_mean(values, offsets).sum(), values)
    torch.testing.assert_close(gradient, torch.tensor([1 / 3, 1 / 3, 1 / 3, 1.0]).unsqueeze(1).expand(4, 4))


def test_a_maximum_gives_its_gradient_to_the_largest_row() -> None:
    values = torch.tensor([[1.0, 5.0], [2.0, 3.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(segment_max(values, torch.tensor([0, 2])).sum(), values)
    assert gradient.tolist() == [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_reductions_keep_the_dtype(dtype: torch.dtype) -> None:
    values, offsets = rows_of([3, 0, 1])
    assert segment_mean(values.to(dtype), offsets).dtype == dtype
    assert segment_max(values.to(dtype), offsets).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_of_16_bits_are_added_up_in_32_on_every_device(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU's kernel would do so by itself, so what it is given is looked at."""
    given, plain = list[torch.dtype](), torch.Tensor.index_add

    def watched(total: torch.Tensor, dim: int, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        given.extend([total.dtype, rows.dtype])
        return plain(total, dim, index, rows)

    monkeypatch.setattr(torch.Tensor, "index_add", watched)
    values, offsets = torch.ones(4096, 2, dtype=dtype), torch.tensor([0, 4096])
    assert segment_sum(values, offsets).tolist() == [[4096, 4096]]
    assert segment_mean(values, offsets).tolist() == [[1, 1]]
    assert float(segment_softmax(values, offsets).float().sum()) == pytest.approx(2)
    assert set(given) == {torch.float32}
    assert len(given) == 6


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("trailing", [(), (4,), (3, 4)])
def test_padding_puts_each_example_on_its_own_line_with_zeros_behind(
    lengths: list[int], trailing: tuple[int, ...]
) -> None:
    _, offsets = rows_of(lengths)
    values = torch.arange(1, 1 + sum(lengths) * int(np.prod(trailing)), dtype=torch.float32)
    values = values.reshape(sum(lengths), *trailing)
    padded, mask = pad(values, offsets)
    longest = max(lengths, default=0)
    assert padded.shape == (len(lengths), longest, *trailing)
    assert mask.tolist() == [[j < n for j in range(longest)] for n in lengths]
    for i, n in enumerate(lengths):
        assert torch.equal(padded[i, :n], values[offsets[i] : offsets[i + 1]])
        assert not padded[i, n:].any()


def test_examples_of_a_batch_are_views_of_its_rows() -> None:
    states = torch.arange(5 * 2 * 3).reshape(5, 2, 3)
    batch = Ragged(states, np.array([0, 2, 2, 5], dtype=np.int64), np.ones(5, dtype=np.bool_))
    assert len(batch) == 3
    assert [example.shape for example in (batch[0], batch[1], batch[2])] == [(2, 2, 3), (0, 2, 3), (3, 2, 3)]
    assert torch.equal(batch[-1], states[2:5])
    assert batch[0].data_ptr() == states.data_ptr()


@pytest.mark.parametrize("example", [3, -4, 100])
def test_an_example_beyond_the_batch_is_named(example: int) -> None:
    batch = Ragged(torch.zeros(5, 2, 3), np.array([0, 2, 2, 5], dtype=np.int64), np.ones(5, dtype=np.bool_))
    with pytest.raises(IndexError, match=f"index {example} of 3"):
        batch[example]
