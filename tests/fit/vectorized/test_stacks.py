"""A run in a stack learns what it learns alone: the same weights, the same decisions, whoever its neighbours are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.errors import UsageError
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.train.schedule import check_options, rate_factor
from fusionkit.fit.vectorized import layer_mixes
from fusionkit.fit.vectorized.looped import LoopedRuns
from fusionkit.fit.vectorized.stack import Stack, Stacked, can_stack, stack_of
from fusionkit.fusions import sees_examples
from fusionkit.fusions.attention import Attention
from fusionkit.fusions.dwatt import DWAtt
from fusionkit.heads.softmax import Softmax
from fusionkit.specs import RunSpec

LAYERS, HIDDEN, CLASSES, STEPS = 4, 16, 5, 20
NAMES = (
    "last", "layer:1", "linear", "linear:gamma=no", "linear:norm=token", "concat", "concat-affine", "attention",
    "attention:scale=yes", "dwatt", "dwatt:scale=yes", "extra-layers:1", "element-wise", "mlp-weights", "depth-lstm",
    "element-wise:softmax=no", "mlp-weights:softmax=no", "concat:first=yes", "ladder:2", "flat:2",
)  # fmt: skip
ONE_LAYER = ("last", "layer", "extra-layers")
# Every form that is written out, and one beside it; `fusionkit.testing` stacks every fusion and every head.
# Each head with a pool it can be read behind, and whether vmap can stack it.
READ_OUTS = {
    "classifier": ("mean", True), "tagger": (None, True), "linear-tagger": (None, True), "crf": (None, True),
    "regressor": ("max", True), "bilstm-crf": (None, False), "bcn": (None, False), "esim": (None, False),
    "esim-regressor": (None, False), "sigmoid-classifier": ("mean", True),
}  # fmt: skip


def spec_of(fusion: str, head: str, seed: int = 0, **fields: Any) -> RunSpec:
    given = {"store": "s", "task": "t", "label": "l", "fusion": fusion, "head": head, "pool": READ_OUTS[head][0]}
    return RunSpec(**{**given, "init_seed": seed, "lr": 2e-3, "epochs": 2, **fields})


def batches_of(spec: RunSpec, data_seed: int, dense: bool = False, steps: int = STEPS) -> list[Batch]:
    """Minibatches of six examples with one to five rows, as many targets as the head has units."""
    random = torch.Generator().manual_seed(1000 + data_seed)
    one = spec.fusion.partition(":")[0] in ONE_LAYER
    found = []
    for _ in range(steps):
        lengths = torch.ones(6, dtype=torch.int64) if dense else torch.randint(1, 6, (6,), generator=random)
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        rows = int(offsets[-1])
        states = torch.randn(rows, 1 if one else LAYERS, HIDDEN, generator=random)
        units = rows if READ_OUTS[spec.head] == (None, True) or spec.head == "bilstm-crf" else 6
        units = 3 if spec.head.startswith("esim") else units
        numeric = "regressor" in spec.head
        targets = (
            torch.randn(units, generator=random) if numeric else torch.randint(CLASSES, (units,), generator=random)
        )
        if spec.head == "sigmoid-classifier":
            targets = torch.randint(2, (units, CLASSES), generator=random).float()
        found.append(Batch(states, offsets, targets, None, offsets))
    return found


def models_of(specs: Sequence[RunSpec]) -> list[Any]:
    layers = 1 if specs[0].fusion.partition(":")[0] in ONE_LAYER else LAYERS
    sides = 2 if specs[0].head.startswith("esim") else 1
    models = [model_of(spec, layers, HIDDEN, {"": CLASSES}, sides) for spec in specs]
    for model, spec in zip(models, specs, strict=True):
        if isinstance(model.head, Softmax):
            model.head.label_smoothing = spec.label_smoothing
    return models


def train(stack: Stack, feeds: Sequence[Sequence[Batch]]) -> list[Tensor]:
    """The losses of each step, a learning rate of its own for each run."""
    losses = []
    for step, batches in enumerate(zip(*feeds, strict=True)):
        rates = [spec.lr * rate_factor(spec, step, STEPS) for spec in stack.specs]
        losses.append(stack.step(batches, rates))
    return losses


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest distance of two tensors of one name, as a share of the tensor's size.

    A bias of keys shifts all scores of a softmax alike: its gradient is 0 but for rounding, of which Adam makes whole
    steps in float32.
    """
    assert one.keys() == other.keys()
    names = [name for name in one if not (name.endswith("key.bias") and one[name].dtype == torch.float32)]
    return max(float((one[name] - other[name]).norm() / one[name].norm().clamp(min=1e-3)) for name in names)


def check_like_alone(
    specs: Sequence[RunSpec], dense: bool = False, dtype: torch.dtype = torch.float64, within: float = 1e-9
) -> None:
    """Twenty steps, together and alone.

    Rounding alone tells the two apart, and double precision has little of it: what is wrong shows. In float32 it may
    decide on which side of a kink of ReLU a number falls, after which two runs go their own ways.
    """
    seeds = list(dict.fromkeys(spec.data_seed for spec in specs))
    feeds = {seed: [to(batch, dtype) for batch in batches_of(specs[0], seed, dense)] for seed in seeds}
    stack = stack_of(specs, [model.to(dtype) for model in models_of(specs)])
    assert isinstance(stack, Stacked)
    together = train(stack, [feeds[seed] for seed in seeds])
    for run, spec in enumerate(specs):
        alone = LoopedRuns([spec], [model.to(dtype) for model in models_of([spec])])
        begun = alone.weights(0)
        losses = train(alone, [feeds[spec.data_seed]])
        learned = alone.weights(0)
        assert apart(begun, learned) > 1e-3  # there was something to compare
        assert apart(learned, stack.weights(run)) < within
        assert torch.allclose(torch.stack(together)[:, run], torch.cat(losses), rtol=within, atol=within)
        held = feeds[spec.data_seed][0]
        if torch.is_floating_point(held.targets):
            assert torch.allclose(alone.decide(held)[0], stack.decide(held)[run], rtol=100 * within, atol=10 * within)
        else:
            for among in (0, 1 << 20):  # so many are worth it to fold the weights
                assert torch.equal(alone.decide(held)[0], stack.decide(held, among)[run])


def to(batch: Batch, dtype: torch.dtype) -> Batch:
    targets = batch.targets.to(dtype) if torch.is_floating_point(batch.targets) else batch.targets
    return replace(batch, states=batch.states.to(dtype), targets=targets)


def varied(fusion: str, head: str, **fields: Any) -> list[RunSpec]:
    """Four runs of one data seed that differ in all that a stack lets differ."""
    base = spec_of(fusion, head, **fields)
    return [
        base,
        replace(base, init_seed=1, lr=5e-4, weight_decay=0.1),
        replace(base, init_seed=2, schedule="cosine", warmup=0.2),
        replace(base, init_seed=3, schedule="constant", clip_norm=0.05),
    ]


@pytest.mark.product
@pytest.mark.parametrize("fusion", NAMES)
@pytest.mark.parametrize("head", [head for head, (_, stacks) in READ_OUTS.items() if stacks])
def test_twenty_steps_in_a_stack_are_twenty_steps_alone(fusion: str, head: str) -> None:
    check_like_alone(varied(fusion, head))


@pytest.mark.parametrize("fusion", NAMES)
def test_twenty_steps_in_float32_differ_by_rounding(fusion: str) -> None:
    base = spec_of(fusion, "linear-tagger", lr=1e-3)  # no kinks in this head
    specs = [replace(base, init_seed=seed, lr=rate) for seed, rate in ((0, 1e-3), (1, 1e-3), (2, 2e-3))]
    check_like_alone(specs, dtype=torch.float32, within=1e-5)


@pytest.mark.product
@pytest.mark.parametrize("fusion", [name for name in NAMES if not sees_examples(name)])
@pytest.mark.parametrize("head", ["tagger", "linear-tagger"])
def test_runs_of_several_data_seeds_share_a_stack_where_minibatches_have_one_shape(fusion: str, head: str) -> None:
    base = spec_of(fusion, head)
    specs = [replace(base, data_seed=d, init_seed=i, lr=r) for d in range(3) for i, r in ((0, 2e-3), (1, 1e-3))]
    check_like_alone(specs, dense=True)


@pytest.mark.product
@pytest.mark.parametrize("fusion", ["last", "attention", "concat", "dwatt", "ladder:2", "flat:2"])
@pytest.mark.parametrize("head", ["tagger", "linear-tagger", "crf", "classifier"])
def test_each_run_drops_out_what_it_would_alone(fusion: str, head: str) -> None:
    check_like_alone(varied(fusion, head, dropout=0.4))


def test_unequal_numbers_of_runs_a_data_seed_share_a_stack() -> None:
    base = spec_of("attention", "tagger")
    seeds = [(0, 0), (0, 1), (0, 2), (1, 0)]
    check_like_alone([replace(base, data_seed=d, init_seed=i) for d, i in seeds], dense=True)


def test_adam_and_label_smoothing_act_in_a_stack_as_alone() -> None:
    check_like_alone(varied("linear", "tagger", optimizer="adam", label_smoothing=0.1))


@pytest.mark.parametrize("fusion", NAMES)
@pytest.mark.parametrize("runs", [1, 3])
def test_a_minibatch_without_rows_is_a_step(fusion: str, runs: int) -> None:
    """Sentences without a word that has a row, and nothing else."""
    specs = [spec_of(fusion, "linear-tagger", seed) for seed in range(runs)]
    stack = stack_of(specs, models_of(specs))
    full = batches_of(specs[0], 0, steps=1)[0]
    empty = replace(full, states=full.states[:0], offsets=full.offsets * 0, targets=full.targets[:0])
    empty = replace(empty, read_offsets=empty.offsets)
    assert torch.equal(stack.step([empty], [1e-3] * runs), torch.zeros(runs))
    stack.step([full], [1e-3] * runs)
    assert stack.decide(empty, 1 << 20).shape == (runs, 0)
    assert stack.decide(full).shape == (runs, len(full.states))


@pytest.mark.parametrize("fusion", ["element-wise", "element-wise:softmax=no"])
@pytest.mark.parametrize("bound", [0, 1 << 30])
def test_element_wise_mixes_are_the_same_summed_or_contracted(
    bound: int, fusion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_mixes, "SUMMED_BYTES", bound)
    check_like_alone(varied(fusion, "tagger"))


@pytest.mark.parametrize(("bound", "used"), [(0, False), (1 << 30, True)])
def test_dwatt_is_stacked_by_vmap_where_its_form_would_leave_the_cache(
    bound: int, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, form = [], layer_mixes.fuse_dwatt

    def seen(*given: Any) -> torch.Tensor:
        called.append(1)
        return form(*given)

    monkeypatch.setattr(layer_mixes, "BETWEEN_BYTES", bound)
    monkeypatch.setitem(layer_mixes.FORMS, DWAtt, seen)
    check_like_alone(varied("dwatt", "tagger"))
    assert bool(called) is used


def test_the_bound_of_dwatts_form_counts_the_states_of_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    states = torch.zeros(10, 4, 16)  # 2,560 bytes
    monkeypatch.setattr(layer_mixes, "BETWEEN_BYTES", 3 * 2560)
    assert [layer_mixes.spreads(DWAtt(4, 16), states, runs) for runs in (3, 4)] == [False, True]
    assert not layer_mixes.spreads(Attention(4, 16), states, 99)


# A bias of keys learns from rounding alone, and moves what dwatt's query learns by rounding of its own.
@pytest.mark.parametrize(("fusion", "within"), [("linear", 1e-6), ("concat-affine", 1e-6), ("dwatt", 1e-5)])
def test_another_run_in_the_stack_changes_no_run(fusion: str, within: float) -> None:
    specs = varied(fusion, "tagger", dropout=0.2)
    feed = batches_of(specs[0], 0)
    few, more = (stack_of(some, models_of(some)) for some in (specs[:3], specs))
    train(few, [feed])
    train(more, [feed])
    assert all(apart(few.weights(run), more.weights(run)) < within for run in range(3))


@pytest.mark.parametrize(("dropout", "before"), [(0.0, 8), (0.3, 8), (0.0, 0)])
def test_runs_that_stay_go_on_as_if_nobody_had_left(dropout: float, before: int) -> None:
    specs = varied("attention", "tagger", dropout=dropout)
    feed = batches_of(specs[0], 0)
    stack = stack_of(specs, models_of(specs))
    train(stack, [feed[:before]])
    stack.keep([1, 3])
    assert stack.specs == [specs[1], specs[3]]
    whole = stack_of(specs, models_of(specs))
    train(whole, [feed[:before]])
    for step, batch in enumerate(feed[before:]):
        for each in (stack, whole):
            each.step([batch], [spec.lr * rate_factor(spec, step, STEPS) for spec in each.specs])
    assert apart(whole.weights(1), stack.weights(0)) < 1e-6
    assert apart(whole.weights(3), stack.weights(1)) < 1e-6


@pytest.mark.parametrize("head", [head for head, (_, stacks) in READ_OUTS.items() if not stacks])
def test_what_cannot_be_stacked_goes_one_by_one_over_the_same_minibatches(head: str) -> None:
    specs = [spec_of("last", head, seed=seed, dropout=0.3) for seed in (0, 1)]
    models = models_of(specs)
    assert not can_stack(models[0])
    stack = stack_of(specs, models)
    assert isinstance(stack, LoopedRuns)
    feed = batches_of(specs[0], 0, steps=4)
    train(stack, [feed])
    for run, spec in enumerate(specs):
        alone = LoopedRuns([spec], models_of([spec]))
        train(alone, [feed])
        assert apart(alone.weights(0), stack.weights(run)) == 0.0


def test_a_steps_random_numbers_leave_the_global_stream_alone() -> None:
    specs = varied("linear", "tagger", dropout=0.5)
    for some in (specs, specs[:1]):
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        stack = stack_of(some, models_of(some))
        stack.step(batches_of(specs[0], 0)[:1], [1e-3] * len(some))
        assert torch.equal(torch.rand(3), expected)


@pytest.mark.product
@pytest.mark.parametrize("fusion", NAMES)
@pytest.mark.parametrize("head", [head for head in READ_OUTS if "regressor" not in head])
def test_steps_in_bfloat16_go_where_those_in_float32_go(fusion: str, head: str) -> None:
    """Alone and beside another run: near float32's, not the same, and as near each other."""
    whole = spec_of(fusion, head)
    narrow = replace(whole, compute_dtype="bfloat16")
    feed = batches_of(whole, 0, steps=4)
    begun = models_of([whole])[0]
    start = {name: value.clone() for name, value in begun.state_dict().items()}
    learned = {}
    for name, specs in {"whole": [whole], "alone": [narrow], "beside": [narrow, replace(narrow, init_seed=1)]}.items():
        stack = stack_of(specs, models_of(specs))
        losses = train(stack, [feed])
        assert losses[0].dtype == torch.float32
        assert all(weight.dtype == torch.float32 for weight in stack.weights(0).values())
        learned[name] = stack.weights(0)
    moved = torch.cat([(learned["whole"][name] - start[name]).flatten() for name in start])
    alone, beside = (
        torch.cat([(learned[name][key] - start[key]).flatten() for key in start]) for name in ("alone", "beside")
    )
    assert 0 < apart_of(alone, moved) < 0.5
    assert 0 < apart_of(beside, moved) < 0.5
    assert apart_of(beside, alone) < 0.5


def apart_of(one: Tensor, other: Tensor) -> float:
    """The distance of two, as a share of their size."""
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_pools_add_up_in_float32_whatever_the_products_are(pool: str) -> None:
    """In bfloat16 a sum of ones stands still at 256."""
    spec = spec_of("linear", "classifier", pool=pool, compute_dtype="bfloat16")
    states, offsets = torch.ones(1000, LAYERS, HIDDEN), torch.tensor([0, 1000])
    batch = Batch(states, offsets, torch.tensor([1]), None, offsets)
    for count in (1, 2):
        specs = [replace(spec, init_seed=seed) for seed in range(count)]
        wide = [replace(each, compute_dtype="float32") for each in specs]
        losses = [stack_of(each, models_of(each)).step([batch], [1e-3] * count) for each in (specs, wide)]
        assert torch.allclose(losses[0], losses[1], rtol=0.01)


def test_a_number_is_not_learned_in_eight_bits() -> None:
    for head in ("regressor", "esim-regressor"):
        with pytest.raises(UsageError, match="cannot use --compute-dtype bfloat16"):
            check_options(spec_of("last", head, compute_dtype="bfloat16"))
