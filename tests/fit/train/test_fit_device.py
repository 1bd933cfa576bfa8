"""Training on another device than the CPU.

The device is PyTorch's lazy one: its tensors are no CPU tensors, and mixing both is an error as it is on a GPU, but
what it computes is computed by the CPU. Where there is a GPU, the same is tried there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._lazy.ts_backend
from torch import Tensor

from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.loader.gpu import GpuLoaders
from fusionkit.fit.loader.minibatches import SeparateLoaders, load_into_memory
from fusionkit.fit.progress import FitProgress
from fusionkit.fit.train.inputs import UnitInputs
from fusionkit.fit.train.loop import train_unit
from fusionkit.fit.train.result import RunResult
from fusionkit.fit.vectorized.bfloat16_decisions import UNSURE, decide_most
from fusionkit.fit.vectorized.cuda_graphs import CudaGraphs
from fusionkit.fit.vectorized.looped import LoopedRuns
from fusionkit.fit.vectorized.stack import Stacked, stack_of
from fusionkit.fusions import sees_examples
from fusionkit.specs import RunSpec
from fusionkit.store import Store

Toy = Callable[..., TaskData]
LAYERS, HIDDEN = (0, 1, 2), 6
CPU, LAZY = torch.device("cpu"), torch.device("lazy")
ON_LAZY = pytest.param(LAZY, id="lazy")
GPU = pytest.param(
    torch.device("cuda"),
    marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda sees no GPU"),
    id="cuda",
)
# The others, whose steps are of the same products, are for the soak: a fusion takes five seconds here.
FUSIONS = ("last", "attention", "concat")
MORE = (
    "extra-layers:1",
    "layer:1",
    "linear",
    "linear:gamma=yes",
    "element-wise",
    "concat-affine",
    "dwatt",
    "mlp-weights",
    "ladder:2",
    "flat:2",
)


@cache
def begin_lazy() -> None:
    """PyTorch takes it once a process."""
    torch._lazy.ts_backend.init()  # type: ignore[no-untyped-call]


@pytest.fixture(autouse=True)
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has the device when it was asked for, but no views of its tensors in inference mode.

    It computes what is asked for when that is read: a whole epoch at once, unless each step is. Some of what is copied
    from it comes in a wrapper that NumPy reads past, and what ``unbind`` gives is taken for the CPU's.
    """
    begin_lazy()
    monkeypatch.setattr(torch._C, "_InferenceMode", lambda on: torch.no_grad() if on else nullcontext())

    def computed(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def done(stack: Stacked | LoopedRuns, *given: Any) -> Tensor:
            losses = step(stack, *given)
            if stack.device.type == "lazy":
                torch._lazy.mark_step()
            return losses

        return done

    def unwrapped(tensor: Tensor) -> Tensor:
        found = copied(tensor)
        return torch._from_functional_tensor(found) if torch._is_functional_tensor(found) else found

    copied = Tensor.cpu
    for kind in (Stacked, LoopedRuns):
        monkeypatch.setattr(kind, "step", computed(kind.step))
    monkeypatch.setattr(Tensor, "cpu", unwrapped)
    monkeypatch.setattr(Tensor, "unbind", lambda x, dim=0: tuple(x.select(dim, k) for k in range(x.shape[dim])))


def specs_of(data: TaskData, **fields: Any) -> list[RunSpec]:
    plain = {"store": "s", "task": data.task.name, "label": "x", "fusion": "linear", "head": data.task.heads[0]}
    base = RunSpec(**{**plain, "epochs": 2, "batch_size": 8, "lr": 1e-2, **fields})
    return [base, replace(base, init_seed=1, lr=1e-3, clip_norm=0.5)]


def trained(specs: list[RunSpec], data: TaskData, device: torch.device, hidden: int = HIDDEN) -> list[RunResult]:
    found: dict[RunSpec, RunResult] = {}
    for spec, outcome in train_unit(specs, data, lambda _: LAYERS, hidden, lambda _: None, device=device):
        assert isinstance(outcome, RunResult)
        found[spec] = outcome
    return [found[spec] for spec in specs]


def assert_alike(ours: RunResult, theirs: RunResult) -> None:
    assert ours.weights.keys() == theirs.weights.keys()
    for name, weights in ours.weights.items():
        assert weights.device == CPU
        if name.endswith("key.bias"):  # learns from rounding alone: it shifts all scores of a softmax alike
            continue
        torch.testing.assert_close(weights, theirs.weights[name], rtol=1e-3, atol=1e-4)
    assert ours.scores == theirs.scores
    assert ours.best_epoch == theirs.best_epoch


@pytest.mark.parametrize("device", [ON_LAZY, GPU])
@pytest.mark.parametrize(
    "fusion",
    ["concat", *(pytest.param(name, marks=pytest.mark.soak("products")) for name in ("last", "attention", *MORE))],
)
def test_a_stack_learns_on_a_device_what_it_learns_on_the_cpu(
    toy: Toy, fusion: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A mask has as many rows as a minibatch is filled up to.
    monkeypatch.setattr("fusionkit.fusions.narrow.DROPOUT", 0.0)
    data = toy(words=True, examples=12)  # a whole minibatch and half of one
    specs = specs_of(data, fusion=fusion)
    for ours, theirs in zip(trained(specs, data, device), trained(specs, data, CPU), strict=True):
        assert_alike(ours, theirs)


@pytest.mark.parametrize(
    ("head", "device"),
    [
        pytest.param("crf", LAZY, id="crf-lazy", marks=pytest.mark.soak("products")),
        *(pytest.param(head, *GPU.values, marks=GPU.marks, id=f"{head}-cuda") for head in ("crf", "bilstm-crf")),
    ],
)
def test_heads_that_read_sequences_learn_on_a_device(toy: Toy, head: str, device: torch.device) -> None:
    """The lazy device has no LSTM."""
    data = toy(words=True)
    specs = specs_of(data, head=head, epochs=1)
    for ours, theirs in zip(trained(specs, data, device), trained(specs, data, CPU), strict=True):
        assert_alike(ours, theirs)


@pytest.mark.parametrize("device", [ON_LAZY, GPU])
def test_several_seeds_share_a_stack_on_a_device(toy: Toy, device: torch.device) -> None:
    data = toy()
    dropout = 0.2 if device == LAZY else 0.0  # a GPU draws other numbers than a CPU
    specs = [replace(spec, data_seed=seed, dropout=dropout) for seed in (0, 1) for spec in specs_of(data, shots=8)]
    for ours, theirs in zip(trained(specs, data, device), trained(specs, data, CPU), strict=True):
        assert_alike(ours, theirs)


@pytest.mark.parametrize("device", [ON_LAZY, GPU])
@pytest.mark.parametrize("fusion", [pytest.param("last", marks=pytest.mark.soak("products")), "attention"])
def test_seeds_whose_minibatches_have_other_lengths_share_a_stack(
    toy: Toy, fusion: str, device: torch.device, stacked: list[list[RunSpec]]
) -> None:
    """Filled up on a device, as they are on the CPU; some runs end before the others."""
    data = toy(words=True)
    specs = [replace(spec, data_seed=seed) for seed in (0, 1, 2) for spec in specs_of(data, shots=6, fusion=fusion)]
    specs[1] = replace(specs[1], epochs=4)
    theirs = trained(specs, data, CPU)
    stacked.clear()
    ours = trained(specs, data, device)
    assert next(len(some) for some in stacked if len(some) > 1) == len(specs)
    for one, other in zip(ours, theirs, strict=True):
        assert_alike(one, other)


@pytest.mark.parametrize("device", [pytest.param(LAZY, id="lazy", marks=pytest.mark.soak("products")), GPU])
@pytest.mark.parametrize(("fusion", "pool"), [("attention", "mean"), ("attention", "max"), ("flat:8", "mean")])
def test_pooled_rows_of_examples_that_are_filled_up_learn_on_a_device_what_they_learn_on_the_cpu(
    corpus_store: Callable[[str], Store], fusion: str, pool: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusionkit.fusions.narrow.DROPOUT", 0.0)
    store = corpus_store("tokens")
    data = load_task(store, *choose_task(store, "classification", None), pool, sees_examples(fusion))
    specs = [
        replace(spec, data_seed=seed) for seed in (0, 1) for spec in specs_of(data, fusion=fusion, pool=pool, lr=1e-3)
    ]
    for ours, theirs in zip(trained(specs, data, device, 384), trained(specs, data, CPU, 384), strict=True):
        assert_alike(ours, theirs)


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[list[RunSpec]]:
    """The runs of each stack that is made to be trained."""
    made: list[list[RunSpec]] = []

    def kept(specs: Any, models: Any) -> Any:
        made.append(list(specs))
        return stack_of(specs, models)

    monkeypatch.setattr("fusionkit.fit.train.loop.stack_of", kept)
    return made


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[CudaGraphs]:
    """The owner of each piece of work that was recorded."""
    found, record = list[CudaGraphs](), CudaGraphs._record

    def kept(graphs: CudaGraphs, work: Callable[[], Tensor]) -> Any:
        done = record(graphs, work)
        found.append(graphs)
        return done

    monkeypatch.setattr(CudaGraphs, "_record", kept)
    return found


@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize("fusion", [*FUSIONS, *MORE])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_fusion_is_recorded_and_learns_what_it_learns_told_kernel_by_kernel(
    toy: Toy, fusion: str, dtype: str, device: torch.device, monkeypatch: pytest.MonkeyPatch, recorded: list[CudaGraphs]
) -> None:
    data = toy(words=True)
    specs = [
        replace(spec, data_seed=seed)
        for seed in (0, 1)
        for spec in specs_of(data, shots=6, fusion=fusion, epochs=6, compute_dtype=dtype)
    ]
    replayed = trained(specs, data, device)
    assert len(recorded) >= 3  # shapes of minibatches, and validation
    monkeypatch.setattr(CudaGraphs, "do", lambda graphs, place, what, work: work())
    for ours, theirs in zip(replayed, trained(specs, data, device), strict=True):
        for name, weights in ours.weights.items():
            if not name.endswith("key.bias"):
                torch.testing.assert_close(weights, theirs.weights[name], rtol=1e-4, atol=1e-5)
        assert ours.scores == theirs.scores


@pytest.mark.parametrize("device", [GPU])
def test_stacks_side_by_side_learn_what_each_learns_alone(toy: Toy, device: torch.device) -> None:
    """More of them than there are streams; what they share is gathered for all of them before each step."""
    data = toy(words=True)
    specs = [
        replace(spec, data_seed=seed, weight_decay=0.1 * seed)
        for fusion in (*FUSIONS, *MORE)
        if not sees_examples(fusion)
        for seed in (0, 1)
        for spec in specs_of(data, shots=6, fusion=fusion, epochs=8, head="crf" if fusion == "linear" else "tagger")
    ]
    # Those whose layers are copied, and stacks that leave before others do.
    copied = {"attention": "0,2", "element-wise": "0,2"}
    ends = {"last": 2, "concat": 5}
    specs = [
        replace(spec, fusion_layers=copied.get(spec.fusion), epochs=ends.get(spec.fusion, spec.epochs))
        for spec in specs
    ]
    together = dict(zip(specs, trained(specs, data, device), strict=True))
    for fusion in dict.fromkeys(spec.fusion for spec in specs):
        own = [spec for spec in specs if spec.fusion == fusion]
        for spec, theirs in zip(own, trained(own, data, device), strict=True):
            for name, weights in together[spec].weights.items():
                if not name.endswith("key.bias"):
                    torch.testing.assert_close(weights, theirs.weights[name], rtol=1e-3, atol=1e-4)
            assert together[spec].scores == theirs.scores


@pytest.mark.parametrize("device", [GPU])
def test_a_large_split_is_decided_in_bfloat16_as_float32_decides(
    toy: Toy, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = toy(words=True)
    specs = [
        replace(spec, data_seed=seed)
        for fusion in ("attention", "extra-layers:1")
        for seed in (0, 1)
        for spec in specs_of(data, shots=6, fusion=fusion)
    ]
    shares = list[float]()

    def watched(*given: Any) -> Tensor:
        found = decide_most(*given)
        if not torch.cuda.is_current_stream_capturing():
            shares.append(float((found != UNSURE).float().mean()))
        return found

    monkeypatch.setattr("fusionkit.fit.vectorized.bfloat16_decisions.decide_most", watched)
    monkeypatch.setattr("fusionkit.fit.train.decisions.GPU_LEAST_ROWS", 1)
    narrow = trained(specs, data, device)
    assert len(shares) >= 2
    assert min(shares) > 0.5
    monkeypatch.setattr("fusionkit.fit.train.decisions.GPU_LEAST_ROWS", 1 << 60)
    for ours, theirs in zip(narrow, trained(specs, data, device), strict=True):
        assert (ours.scores, ours.curve) == (theirs.scores, theirs.curve)


@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize(
    "options",
    [{"class_weights": "balanced"}, {"label_smoothing": 0.1}, {"class_weights": "balanced", "label_smoothing": 0.1}],
)
def test_weights_and_smoothing_pass_over_what_fills_a_minibatch(
    toy: Toy, device: torch.device, options: dict[str, Any]
) -> None:
    data = toy(words=True)
    specs = [replace(spec, data_seed=seed) for seed in (0, 1) for spec in specs_of(data, shots=6, epochs=4, **options)]
    for ours, theirs in zip(trained(specs, data, device), trained(specs, data, CPU), strict=True):
        assert_alike(ours, theirs)


@pytest.mark.parametrize("device", [GPU])
def test_recorded_dropout_is_each_runs_own(
    toy: Toy, device: torch.device, monkeypatch: pytest.MonkeyPatch, recorded: list[CudaGraphs]
) -> None:
    """A run has the masks that it has alone, and other ones at each step."""
    data = toy()
    base = [replace(spec, data_seed=seed, clip_norm=None) for seed in (0, 1) for spec in specs_of(data, shots=8)]
    specs = [replace(spec, dropout=0.5, epochs=12, patience=3 if spec.data_seed else None) for spec in base]
    together = trained(specs, data, device)
    assert recorded
    for spec, ours in zip(specs, together, strict=True):
        (alone,) = trained([spec], data, device)
        assert_alike(ours, alone)
    monkeypatch.setattr(CudaGraphs, "do", lambda graphs, place, what, work: work())
    for ours, theirs in zip(together, trained(specs, data, device), strict=True):
        assert_alike(ours, theirs)


@pytest.mark.parametrize("device", [GPU])
def test_memory_that_runs_out_while_a_step_is_recorded_is_an_error_and_leaves_the_device_sound(
    toy: Toy, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = toy(words=True)
    specs = specs_of(data, fusion="attention", epochs=5)
    plain = trained(specs, data, device)
    real = Stacked._train_step

    def short(stack: Stacked, *given: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 50, device=device)
        return real(stack, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Stacked, "_train_step", short)
        with pytest.raises(torch.OutOfMemoryError):
            trained(specs, data, device)
    for ours, theirs in zip(trained(specs, data, device), plain, strict=True):
        assert_alike(ours, theirs)


def test_only_a_fusion_that_is_told_how_long_examples_are_gets_minibatches_that_are_filled_up(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = toy(words=True)
    specs = specs_of(data, fusion="flat:2", epochs=2)
    draws = {0: data.train.subset(np.flatnonzero(np.diff(data.train.offsets) > 0))}
    for takes, kind in ((True, GpuLoaders), (False, SeparateLoaders)):
        monkeypatch.setattr("fusionkit.fit.train.inputs.takes_longest", lambda fusion, takes=takes: takes)
        assert isinstance(UnitInputs(specs, draws, LAYERS, data, HIDDEN, 1, LAZY).loader, kind)


def test_a_draw_is_held_in_the_memory_of_the_device(toy: Toy) -> None:
    data = toy()
    held = load_into_memory(data.train, LAYERS, device=LAZY)
    batch = held.batch(torch.arange(5).numpy(), LAYERS)
    assert batch.states.device.type == "lazy"
    everything = batch.on(LAZY)
    assert {x.device.type for x in (everything.states, everything.offsets, everything.targets)} == {"lazy"}
    torch.testing.assert_close(batch.states.cpu(), data.train.batch(torch.arange(5).numpy(), LAYERS).states)


@pytest.mark.parametrize("there", [pytest.param("lazy"), pytest.param("cuda", marks=GPU.marks)])
def test_a_sweep_on_a_device_is_one_process_and_ends_as_on_the_cpu(
    corpus_store: Callable[[str], Store], tmp_path: Path, there: str
) -> None:
    """Several stacks, which a GPU trains side by side."""
    store = corpus_store("words")
    specs = expand(store, task="tagging", fusions=("linear", "attention"), seeds=2, epochs=(3,))
    found = {}
    for device in ("cpu", there):
        watched = Watched()
        found[device] = fit(store, specs, RunsFolder(tmp_path / device), watched, workers=None, device=device)
        assert not [text for text in watched.said if "processes share" in text]
    for ours, theirs in zip(found[there], found["cpu"], strict=True):
        assert (ours["status"], ours["scores"]) == ("finished", theirs["scores"])
        assert ours["layer_weights"] == pytest.approx(theirs["layer_weights"], abs=1e-5)


class Watched(FitProgress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.mark.parametrize("device", ["cuda:99", "tpu-of-nobody", "meta"])
def test_a_device_that_is_not_there_is_refused_before_any_run(
    corpus_store: Callable[[str], Store], tmp_path: Path, device: str
) -> None:
    store = corpus_store("words")
    runs = RunsFolder(tmp_path / "runs")
    with pytest.raises(UsageError, match=f"device '{device}' cannot be used"):
        fit(store, expand(store, task="tagging"), runs, Watched(), device=device)
    assert not [*runs.path.glob("*/run.json")]
