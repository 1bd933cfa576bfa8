"""The online code (Voita and Titov 2020): its blocks, and its bits by NumPy and by brute force."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.online_code import PERCENT, block_ends, coded_data
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import UsageError
from fusionkit.fit.model.fused import FusedModel, build_model
from fusionkit.fit.sweep.grid import expand
from fusionkit.fit.train.code_length import surprisal
from fusionkit.fit.train.loop import train_run
from fusionkit.specs import MDL_BLOCKS, RunSpec
from fusionkit.store import Store

MakeToy = Callable[..., TaskData]
HIDDEN, LAYERS = 6, (0, 1, 2)


def spec_of(task: str, head: str, **more: Any) -> RunSpec:
    return RunSpec(store="toy", task=task, label="label", fusion="linear", head=head, lr=0.02, epochs=4, **more)


def test_the_blocks_are_those_of_the_paper_and_grow_along_one_permutation(toy: MakeToy) -> None:
    assert block_ends(10_000) == [10, 20, 40, 80, 160, 320, 625, 1250, 2500, 5000, 10_000]
    assert len(PERCENT) == MDL_BLOCKS + 1
    data = toy(examples=600)
    ends, seen, before = block_ends(600), list[str](), set[str]()
    for block in range(1, MDL_BLOCKS + 1):
        coded = coded_data(spec_of("classification", "classifier", mdl=block, data_seed=3), data)
        assert coded.test is not None
        learned, told = set(coded.train.ids), set(coded.test.ids)
        assert len(learned) == ends[block - 1]
        assert learned == before | learned
        assert not learned & told
        seen += coded.train.ids if block == 1 else []
        seen += coded.test.ids
        before = learned | told
    assert sorted(seen) == sorted(data.train.ids)  # each label is told once
    other = coded_data(spec_of("classification", "classifier", mdl=9, data_seed=4), data)
    assert set(other.train.ids) != set(coded_data(spec_of("classification", "classifier", mdl=9), data).train.ids)


@pytest.mark.parametrize(("words", "learnable"), [(False, True), (True, True), (False, False)])
def test_the_online_code_is_numpys(toy: MakeToy, words: bool, learnable: bool) -> None:
    data = toy(words=words, learnable=learnable, examples=400)
    task, head = ("tagging", "linear-tagger") if words else ("classification", "classifier")
    ends, online, uniform = block_ends(400), 0.0, 0.0
    order = np.random.default_rng([0, 8]).permutation(400)  # the ranking of the nested draws of data seed 0
    units = [len(data.train.subset(np.array([at])).targets) for at in range(400)]
    wanted = float(sum(units[at] for at in order[: ends[0]]))  # of two classes each label takes one bit
    for block in range(1, MDL_BLOCKS + 1):
        spec = spec_of(task, head, mdl=block)
        coded = coded_data(spec, data)
        result = train_run(spec, coded, LAYERS, HIDDEN, lambda: None)
        assert result.metric == "cross_entropy"
        online += result.scores["test"]["code_length"]
        uniform += result.scores["test"]["uniform_length"]
        model = build_model(spec, 3, HIDDEN, 2)
        model.load_state_dict(result.weights)
        told = data.train.subset(np.sort(order[ends[block - 1] : ends[block]]))
        with torch.inference_mode():
            scores = model.eval()(told.batch(np.arange(len(told)), LAYERS).states, torch.from_numpy(told.offsets))
        z = scores.numpy().astype(np.float64)
        probabilities = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        wanted -= np.log2(probabilities[np.arange(len(z)), told.targets]).sum()
    assert online == pytest.approx(wanted, rel=1e-5)
    assert uniform == pytest.approx(sum(units))
    assert (uniform / online > 2) if learnable else (uniform / online < 1.05)


def batch_of(targets: torch.Tensor, offsets: list[int]) -> Batch:
    """Random rows with these targets."""
    bounds = torch.tensor(offsets)
    states = torch.randn(offsets[-1], 2, 5, generator=torch.Generator().manual_seed(1))
    return Batch(states, bounds, targets, None, bounds)


def model_of_head(task: str, head: str) -> FusedModel:
    return build_model(spec_of(task, head), 2, 5, 3).eval()


def test_the_bits_of_a_path_are_those_of_all_paths_by_brute_force() -> None:
    model, tags = model_of_head("tagging", "crf"), [0, 2, 1, 1, 0, 2]
    batch = batch_of(torch.tensor([*tags, -1]), [0, 4, 4, 6, 7])  # the last sentence has a tag that train lacks
    with torch.inference_mode():
        found, count = surprisal(model, batch)
        emissions = model(batch.states, batch.offsets).double().numpy()
    crf: Any = model.head
    start, steps, end = (each.detach().double().numpy() for each in (crf.start, crf.transitions, crf.end))

    def energy(path: tuple[int, ...], at: int) -> float:
        inside = sum(steps[a, b] for a, b in itertools.pairwise(path))
        return float(start[path[0]] + end[path[-1]] + inside + sum(emissions[at + t, k] for t, k in enumerate(path)))

    wanted = 0.0
    for a, b in ((0, 4), (4, 6)):
        every = [energy(path, a) for path in itertools.product(range(3), repeat=b - a)]
        wanted += float(np.log(np.exp(every).sum())) - energy(tuple(tags[a:b]), a)
    assert found == pytest.approx(wanted, rel=1e-5)
    assert count == 6


def test_the_bits_of_several_labels_are_those_of_each_and_of_the_absence_of_the_others() -> None:
    model = model_of_head("multi-label", "sigmoid-classifier")
    marks = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    batch = batch_of(marks, [0, 1, 2])
    with torch.inference_mode():
        found, count = surprisal(model, batch)
        p = 1 / (1 + np.exp(-model(batch.states, batch.offsets).double().numpy()))
    wanted = -np.log(np.where(marks.numpy() == 1, p, 1 - p)).sum()
    assert found == pytest.approx(wanted, rel=1e-6)
    assert count == 2


@pytest.mark.parametrize(
    ("choices", "received"),
    [
        ({"task": "tagging", "shots": (1,)}, "--shots with --draw uniform"),
        ({"task": "joint", "pool": "mean"}, "the task joint"),
        ({"task": "tagging", "methods": ("full",)}, "a --method that trains through the encoder"),
    ],
)
def test_a_code_is_of_the_labels_of_one_task_in_a_nested_draw(
    corpus_store: Callable[[str], Store], choices: dict[str, Any], received: str
) -> None:
    with pytest.raises(UsageError, match="--mdl codes the labels of one task") as caught:
        expand(corpus_store("tokens"), fusions=["last"], mdl=True, **choices)
    assert caught.value.received == received
    nested = expand(corpus_store("tokens"), task="tagging", fusions=["last"], mdl=True, shots=(1,), draw="nested")
    assert [spec.mdl for spec in nested] == [None, *range(1, 11)]
