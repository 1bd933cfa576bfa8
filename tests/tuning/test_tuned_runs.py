"""Runs that train through the encoder: their steps are those of a plain loop, over the minibatches of frozen heads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from fusionkit.dataset.draws import epoch_order
from fusionkit.encode.batching import Batching
from fusionkit.encoder import load_encoder
from fusionkit.errors import EncoderError, StoreError, UsageError
from fusionkit.fit import RunsFolder, Share, expand, fit, mix_of, open_starts
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.prepare import prepare
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.sweep.method_choices import usual_run
from fusionkit.fit.train.loop import diverged
from fusionkit.machine.devices import CPU
from fusionkit.predict import Tags, load
from fusionkit.specs import RunSpec
from fusionkit.store import Store, open_store
from fusionkit.tuning.encoder import load_tuned, set_dropout
from fusionkit.tuning.live import BATCHING, LiveStates, batching_of
from fusionkit.tuning.passes import FromText
from fusionkit.tuning.tokens import Tokens, tokens_of
from tests.tuning.conftest import encoded

hf: Any = transformers
Train = Callable[..., dict[str, Any]]
STILL: dict[str, Any] = {"encoder_dropout": 0.0, "encoder_lrs": (1e-3,)}


@pytest.mark.parametrize("tokens", [24, 4096])
def test_live_states_are_the_stored_ones_in_whatever_order_they_are_asked_for(
    store: Store, model_folder: Path, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BATCHING, "cpu", Batching(tokens))
    split, rng = store["train"], np.random.default_rng(0)
    encoder = load_encoder(str(model_folder), device="cpu", words=True)
    live = LiveStates(FromText(encoder, tokens_of(split)), store.layers)
    rows = rng.permutation(len(split.hidden_states))[:50]
    with torch.no_grad():
        found = live.gather(rows, (3, 0))
    torch.testing.assert_close(found, split.hidden_states.gather(rows, (3, 0)).float(), rtol=2e-3, atol=2e-3)
    assert live.gather(rows[:0]).shape == (0, 4, 16)


def test_live_states_of_a_pair_as_one_sequence_have_its_token_types(model_folder: Path, tmp_path: Path) -> None:
    (source := tmp_path / "pairs").mkdir()
    pairs = [("snow over york", "rain and snow"), ("anna", "the old town"), ("small boats", "tom and lee near oslo")]
    rows = [json.dumps({"sentence1": first, "sentence2": second}) for first, second in pairs]
    (source / "train.jsonl").write_text("\n".join(rows), encoding="utf-8")
    place = encoded(model_folder, source, tmp_path / "s", words=False, dtype="float32", pair_as="one")
    split, encoder = open_store(place)["train"], load_encoder(str(model_folder), device="cpu")
    tokens, every = tokens_of(split), np.arange(len(split.token_ids))
    assert set(tokens.segments) == {0, 1}
    with torch.no_grad():
        found = LiveStates(FromText(encoder, tokens), range(4)).gather(every)
    torch.testing.assert_close(found, split.hidden_states.gather(every).float(), rtol=1e-4, atol=1e-4)


def test_padded_lengths_are_multiples_up_to_that_of_the_longest_sequence() -> None:
    offsets = np.cumsum([0, 1, 8, 9, 0, 19])
    tokens = Tokens(np.zeros(37, np.int32), np.zeros(37, np.uint8), offsets)
    assert tokens.padded_lengths(np.arange(5)).tolist() == [8, 8, 16, 0, 19]


def test_a_device_without_a_batching_of_its_own_has_that_of_a_cpu() -> None:
    assert [batching_of(torch.device(name)) for name in ("mps", "cuda:1")] == [BATCHING["cpu"], BATCHING["cuda"]]


def by_hand(store: Store, model_folder: Path, spec: RunSpec) -> tuple[Any, Any, list[float]]:
    """The run's training as a plain loop: encoder and head after the last step, and the loss of each step."""
    model: Any = hf.AutoModel.from_pretrained(model_folder)
    model.eval()  # without dropout
    data = SweepContext(store).data(spec)
    head: Any = model_of(spec, 1, store.hidden, {"": len(data.labels)})
    encoder = [p for name, p in model.named_parameters() if not name.startswith("pooler")]
    groups: list[dict[str, Any]] = [
        {"params": list(head.parameters()), "lr": spec.lr, "weight_decay": spec.weight_decay},
        {"params": [p for p in encoder if p.dim() > 1], "lr": spec.encoder_lr, "weight_decay": spec.weight_decay},
        {"params": [p for p in encoder if p.dim() == 1], "lr": spec.encoder_lr, "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups)
    steps = -(-len(data.train) // spec.batch_size)
    rates = hf.get_linear_schedule_with_warmup(
        adam, int(np.ceil(spec.warmup * steps * spec.epochs)), steps * spec.epochs
    )
    split, losses = store["train"], []
    for epoch in range(1, spec.epochs + 1):
        order = epoch_order(len(data.train), spec.data_seed, epoch)
        for batch in np.split(order, range(spec.batch_size, len(order), spec.batch_size)):
            fused, targets = [], []
            for example in batch:
                first, last = split.token_offsets[example : example + 2]
                ids, words = split.token_ids[first:last], split.word_index[first:last]
                states = model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state[0]
                fused.append(states[np.unique(words, return_index=True)[1][1:]])  # the first sub-token of each word
                targets += [data.labels.index(tag) for tag in data.train.gold[example]]
            scores = head.head.score(torch.cat(fused))
            loss: Any = torch.nn.functional.cross_entropy(scores, torch.tensor(targets))
            adam.zero_grad()
            loss.backward()
            adam.step()
            rates.step()
            losses.append(loss.item())
    return model, head, losses


def test_full_fine_tuning_takes_the_steps_of_a_plain_loop(
    store: Store, model_folder: Path, train: Train, specs: Callable[..., list[RunSpec]]
) -> None:
    choices: dict[str, Any] = {"methods": ["full"], **STILL, "validate_every": 2, "weight_decay": 0.1}
    (spec,) = specs(store, **choices)
    assert (spec.epochs, spec.warmup) == (2, 0.1)
    model, head, losses = by_hand(store, model_folder, spec)
    record = train(store, **choices)
    assert [point["loss"] for point in record["curve"]] == pytest.approx(
        [np.mean(losses[:5]), np.mean(losses[5:])], rel=1e-5
    )
    assert record["best_epoch"] == 2
    delta, weights = (
        load_file(record["folder"] / "delta.safetensors"),
        load_file(record["folder"] / "weights.safetensors"),
    )
    wanted = {name: p.detach() for name, p in model.named_parameters() if not name.startswith("pooler")}
    assert delta.keys() == wanted.keys()
    for name, tensor in {**delta, **weights}.items():
        other = wanted[name] if name in wanted else head.state_dict()[name]
        # Adam makes whole steps of a gradient that is rounding error: that of a bias of keys.
        if not name.endswith("key.bias"):
            torch.testing.assert_close(tensor, other, rtol=1e-4, atol=2e-5, msg=name)


# Each method with the smallest of what must stand behind it.
HEADS: dict[str, dict[str, Any]] = {
    "words": {"head": "tagger"},
    "sentences decided whole": {"head": "crf"},
    "weighted classes": {"head": "linear-tagger", "class_weights": "balanced"},
    "examples": {"task": "classification", "label": "label", "head": "classifier"},
    "two tasks": {"task": "joint", "label": "label,tags", "head": None},
}


@pytest.mark.parametrize("name", HEADS)
def test_a_minibatch_in_pieces_makes_the_same_step(store: Store, train: Train, tmp_path: Path, name: str) -> None:
    choices = {"methods": ["bitfit"], **STILL, "epochs": (1,), **HEADS[name]}
    found = [train(store, tmp_path / str(count), accumulate=count, **choices) for count in (1, 3)]
    one, other = (load_file(record["folder"] / "delta.safetensors") for record in found)
    assert found[0]["curve"][0]["loss"] == pytest.approx(found[1]["curve"][0]["loss"], rel=1e-4)
    for weight in (each for each in one if not each.endswith("key.bias")):
        torch.testing.assert_close(one[weight], other[weight], rtol=1e-3, atol=5e-5, msg=weight)
    assert found[1]["memory_activations"] < found[0]["memory_activations"]  # the pieces come one after another


def test_checkpointing_changes_nothing_not_even_under_dropout(store: Store, train: Train, tmp_path: Path) -> None:
    choices: dict[str, Any] = {"methods": ["top:2"], "encoder_lrs": (1e-3,), "epochs": (1,)}
    found = [train(store, tmp_path / str(on), checkpointing=on, **choices) for on in (False, True)]
    one, other = (load_file(record["folder"] / "delta.safetensors") for record in found)
    assert {name: tensor.tolist() for name, tensor in one.items()} == {n: t.tolist() for n, t in other.items()}
    assert found[1]["memory_activations"] < found[0]["memory_activations"]


def test_what_is_learned_is_the_method_s_own_and_is_counted(store: Store, train: Train, tmp_path: Path) -> None:
    record = train(store, tmp_path / "a", methods=["top:1"], epochs=(1,), fusions=["attention"])
    delta = load_file(record["folder"] / "delta.safetensors")
    assert {name.split(".")[2] for name in delta} == {"2"}  # the last of three
    numbers = sum(tensor.numel() for tensor in delta.values())
    assert record["trained_parameters"] == numbers + record["fusion_parameters"] + record["head_parameters"]
    assert record["delta_bytes"] == 4 * numbers
    parts = [record[f"memory_{part}"] for part in ("weights", "gradients", "optimizer", "activations")]
    assert sum(parts) - parts[1] <= record["peak_memory_alone"] <= sum(parts)
    assert parts[1] == 4 * record["trained_parameters"]
    assert min(parts) > 0
    assert not [*record["folder"].glob("state*")]


def test_a_sweep_has_frozen_and_tuned_runs_side_by_side(store: Store, tmp_path: Path) -> None:
    rates = (1e-3, "grid")
    specs = expand(
        store, task="tagging", fusions=["last"], methods=["frozen", "bitfit", "full"], encoder_lrs=rates, epochs=(1,)
    )
    assert [(spec.method, spec.encoder_lr) for spec in specs][:3] == [
        ("frozen", None),
        ("bitfit", 1e-3),
        ("bitfit", 1e-4),
    ]
    assert len(specs) == 1 + 4 + 5  # of bitfit's four one is given too
    assert {spec.weight_decay for spec in specs} == {0.0, 0.01}
    # What frozen runs were called before there were methods, they are still called.
    assert specs[0] == expand(store, task="tagging", fusions=["last"], epochs=(1,))[0]
    records = fit(store, [specs[0], specs[1]], RunsFolder(tmp_path))
    frame = RunsFolder(tmp_path).frame()
    assert [record["status"] for record in records] == ["finished"] * 2
    assert set(frame["method"]) == {"frozen", "bitfit"}
    assert records[1]["delta_bytes"] == frame["delta_bytes"].sum() > 0


def test_the_rate_falls_from_layer_to_layer(store: Store, train: Train, tmp_path: Path) -> None:
    choices: dict[str, Any] = {"methods": ["full"], **STILL, "max_steps": (1,), "warmup": 0.0}
    record = train(store, tmp_path / "a", layer_decay=0.5, schedule="constant", **choices)
    fresh = load_encoder(str(store.manifest["encoder"]["name"]), device="cpu", words=True).model.state_dict()
    # Adam's first step is the rate, whatever the gradient.
    moved = {
        name: float((tensor - fresh[name]).abs().median())
        for name, tensor in load_file(record["folder"] / "delta.safetensors").items()
        if name.endswith("dense.weight")
    }
    assert len({name.split(".")[2] for name in moved}) == 3
    for name, change in moved.items():
        layer = int(name.split(".")[2]) + 1
        assert change == pytest.approx(1e-3 * 0.5 ** (3 - layer), rel=0.25), name


def test_a_planned_store_is_enough_where_no_run_is_frozen(
    planned: Store, store: Store, train: Train, tmp_path: Path
) -> None:
    choices: dict[str, Any] = {"methods": ["bitfit"], "epochs": (1,)}
    assert planned.is_planned
    assert planned.digest == store.digest
    found = [train(each, tmp_path / str(k), **choices)["scores"] for k, each in enumerate((planned, store))]
    assert found[0] == found[1]
    with pytest.raises(StoreError, match="is not finished"):
        train(planned, tmp_path / "frozen", methods=["frozen"], epochs=(1,))
    assert not (tmp_path / "frozen").exists()
    with pytest.raises(StoreError, match="is not finished"):
        open_store(planned.path)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown method": ({"methods": ["fulll"]}, "did you mean 'full'"),
    "a rate for the frozen": ({"encoder_lrs": (1e-4,)}, "--encoder-lr applies only to methods"),
    "no rate": ({"methods": ["full"], "encoder_lrs": ("fast",)}, "--encoder-lr takes a rate"),
    "more layers than there are": ({"methods": ["top:9"]}, "fewer than 9 layers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused(store: Store, train: Train, name: str) -> None:
    choices, said = REFUSED[name]
    with pytest.raises(UsageError, match=said):
        train(store, **choices)


def test_another_encoder_in_the_place_of_the_store_s_is_refused(
    store: Store, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(store.manifest["encoder"], "name", "minilm")
    with pytest.raises(EncoderError, match="not the recorded one: its weights differ"):
        train(store, methods=["full"])


def test_a_run_starts_from_a_frozen_head_and_from_no_tuned_one(store: Store, train: Train, tmp_path: Path) -> None:
    choices: dict[str, Any] = {"epochs": (8,), "lrs": (2e-2,)}
    frozen = train(store, tmp_path / "frozen", **choices)
    still: dict[str, Any] = {"lrs": (1e-9,), "encoder_lrs": (1e-9,), "epochs": (1,)}
    for method in ("full", "prompt:2", "bitfit"):
        begun = train(store, tmp_path / "begun", methods=[method], starts=open_starts([frozen["folder"]]), **still)
        assert begun["spec"]["init_from"] == frozen["folder"].name
        one, other = (load_file(record["folder"] / "weights.safetensors") for record in (frozen, begun))
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-7)
    with pytest.raises(UsageError, match="what differs: method"):
        train(store, tmp_path / "no", starts=open_starts([begun["folder"]]), methods=["bitfit"])


def test_a_share_of_a_store_is_trained_on(store: Store, train: Train, tmp_path: Path) -> None:
    record = train(mix_of([Share(store, "50%")]), methods=["bitfit"], epochs=(1,))
    assert record["steps"] == 3  # of 20 examples
    assert record["scores"]["test"].keys() == record["scores"]["validation"].keys()


def test_prompts_that_leave_no_room_are_refused_before_any_run(
    store: Store, specs: Callable[..., list[RunSpec]], tmp_path: Path
) -> None:
    runs = RunsFolder(tmp_path / "runs")
    with pytest.raises(UsageError, match="adds 25 positions to each sequence, and the encoder reads 32 at most"):
        fit(store, specs(store, methods=["frozen", "bitfit", "prompt:25"]), runs)
    assert runs.all_records() == []


def test_a_run_that_is_asked_for_twice_is_trained_once(
    store: Store, specs: Callable[..., list[RunSpec]], tmp_path: Path
) -> None:
    asked = [spec for method in ("bitfit", "frozen") for spec in specs(store, methods=[method], epochs=(1,))]
    records = fit(store, asked + asked, RunsFolder(tmp_path / "runs"))
    assert [record["status"] for record in records] == ["finished"] * 4
    assert records[:2] == records[2:]


def test_a_test_text_without_room_for_a_prompt_is_refused_before_training(
    model_folder: Path, source_folder: Path, train: Train, tmp_path: Path
) -> None:
    """And predictions are of as much of a text as there is room for."""
    long = json.dumps({"tokens": ["snow"] * 28, "tags": ["O"] * 28, "label": "nowhere"})
    (source := tmp_path / "source").mkdir()
    for split in ("train", "validation"):
        (source / f"{split}.jsonl").write_text((source_folder / f"{split}.jsonl").read_text())
    (source / "test.jsonl").write_text(long)
    store = open_store(encoded(model_folder, source, tmp_path / "s"))
    with pytest.raises(UsageError, match="adds 4 positions") as caught:
        train(store, methods=["prompt:4"])
    assert "one of 30" in str(caught.value.received)
    (source / "test.jsonl").write_text((source_folder / "test.jsonl").read_text())
    store = open_store(encoded(model_folder, source, tmp_path / "t"))
    record = train(store, tmp_path / "u", methods=["prompt:4"], epochs=(1,))
    (found,) = load(record["folder"], device="cpu").predict([["snow"] * 28])
    (tagged,) = found.heads.values()
    assert isinstance(tagged, Tags)
    assert tagged.probabilities is not None
    room = 32 - 4 - 2  # positions, without the prompt and both special sub-tokens
    assert [each is None for each in tagged.probabilities] == [False] * room + [True] * (28 - room)
    assert found.cut


def test_what_an_encoder_or_a_method_cannot_take_is_refused_before_any_run(
    store: Store, specs: Callable[..., list[RunSpec]], tmp_path: Path
) -> None:
    out = RunsFolder(tmp_path / "runs")
    for method in ("houlsby:4", "top:1", "bitfit:layers=-1:"):
        sweep = specs(store, methods=["full", method], layer_decay=0.9, epochs=(1,))
        with pytest.raises(UsageError, match=f"--layer-decay does nothing for {method}"):
            fit(store, sweep, out)
    assert not [*out.record_files()]


def test_a_loss_that_is_not_finite_names_the_method_and_its_rate(
    store: Store, specs: Callable[..., list[RunSpec]]
) -> None:
    (spec,) = specs(store, methods=["top:1"], epochs=(1,), fusions=["last"])
    run: Any = SimpleNamespace(spec=spec, loss=float("nan"))
    error = diverged(run, 3)
    assert f"the loss of top:1 + last + {spec.head} is no longer finite in epoch 3" in str(error)
    assert "choose a smaller --encoder-lr or --lr" in str(error)


def test_a_method_keeps_its_own_dropout_beside_that_of_the_encoder(
    store: Store, specs: Callable[..., list[RunSpec]]
) -> None:
    pytest.importorskip("peft")
    (spec,) = specs(store, methods=["lora:2,dropout=0.3"], encoder_dropout=0.0)
    model = load_tuned(store, spec, CPU).encoder.model
    rates = {m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout) and "lora" in name}
    assert rates == {0.3}
    assert {m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout) and "lora" not in name} == {0.0}


def test_dropout_is_set_wherever_a_layer_keeps_its_rate() -> None:
    """BART's and Bloom's layers keep rates as numbers, some of them whole."""
    layer: Any = nn.Dropout(0.1)
    layer.activation_dropout, layer.hidden_dropout, layer.attention_dropout, layer.dropout = 0.1, 0.1, 0, True
    set_dropout(layer, 0.3)
    assert [layer.p, layer.activation_dropout, layer.hidden_dropout, layer.attention_dropout] == [0.3] * 4
    assert layer.dropout is True


def test_decay_is_of_methods_that_train_the_encoder() -> None:
    assert usual_run("pals:6")["weight_decay"] == usual_run("full")["weight_decay"] == 0.01
    for method in ("pals:6,encoder=frozen", "houlsby:4", "bitfit"):
        assert "weight_decay" not in usual_run(method)
    assert "weight_decay" not in usual_run("full", "adam")  # as an L2 term it would wear the encoder down


def test_a_sweep_with_adam_decays_only_when_asked(store: Store) -> None:
    choices: dict[str, Any] = {"task": "tagging", "fusions": ["last"], "methods": ["full"], "epochs": (1,)}
    of = [{spec.weight_decay for spec in expand(store, **choices, **more)} for more in (
        {}, {"optimizer": "adam"}, {"optimizer": "adam", "weight_decay": 0.01},
    )]  # fmt: skip
    assert of == [{0.01}, {0.0}, {0.01}]


def test_halving_is_refused(store: Store, specs: Callable[..., list[RunSpec]], tmp_path: Path) -> None:
    runs = specs(store, methods=["bitfit"], encoder_lrs=("grid",))
    with pytest.raises(UsageError, match="--halving stops runs that are trained side by side"):
        fit(store, runs, RunsFolder(tmp_path / "runs"), halving=True)


def test_too_few_steps_are_said_once_a_method(
    store: Store, specs: Callable[..., list[RunSpec]], tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"methods": ["frozen", "full", "bitfit"], "shots": (4,), "seeds": 2}
    few = prepare(store, specs(store, **sizes, max_steps=(1,)), RunsFolder(tmp_path)).notes
    assert [note.split(",")[0] for note in few if note.startswith("only")] == [
        "only 1 step of training with full",
        "only 1 step of training with bitfit",
    ]
    enough = prepare(store, specs(store, **sizes, max_steps=(100,)), RunsFolder(tmp_path)).notes
    assert not [note for note in enough if note.startswith("only")]
