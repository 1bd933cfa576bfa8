"""How methods are written, what is said of those misspelt, and what a row of the table says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from fusionkit.errors import UsageError
from fusionkit.fit.sweep.method_choices import usual_run
from fusionkit.methods import METHODS, REGISTRY, apply, method_class, parse_method
from fusionkit.methods.per_task import refuse_turns
from fusionkit.methods.structure import structure_of
from fusionkit.options.spelling import usage
from fusionkit.specs import RunSpec
from fusionkit.tuning.optimizer import Optimizer

HOUSLBY = "houlsby:m[,share=no|layer|three,layers=TEXT,norms=yes|no]"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("full", "full"),
        ("top:2", "top:2"),
        ("top:m=02", "top:2"),
        ("houlsby:64,share=no", "houlsby:64"),
        ("houlsby:64,norms=yes,share=layer", "houlsby:64,share=layer,norms=yes"),
        ("houlsby:64,layers=-3:", "houlsby:64,layers=-3:"),
        ("lora:8,alpha=16,dropout=0.0", "lora:8"),
        ("lora:8,dropout=1e-1", "lora:8,dropout=0.1"),
        ("prompt:20", "prompt:20"),
        ("prefix:P=20", "prefix:20"),
        ("diff-prune:target=5e-3", "diff-prune"),
        ("pals:204,encoder=frozen", "pals:204,encoder=frozen"),
    ],
)
def test_a_method_has_one_spelling(text: str, name: str) -> None:
    spec = parse_method(text)
    assert str(spec) == name
    assert parse_method(name) == spec
    assert hash(parse_method(name)) == hash(spec)
    assert spec.entry is METHODS[name.partition(":")[0]]


def test_how_a_method_may_be_written_is_read_off_its_signature() -> None:
    """And help, which imports no method, reads the same off its file."""
    assert REGISTRY.usages == {name: usage(name, method_class(name)) for name in METHODS}
    assert REGISTRY.usages["houlsby"] == HOUSLBY
    assert [REGISTRY.usages[name] for name in ("full", "top", "ia3", "prefix")] == [
        "full",
        "top:m",
        "ia3[:layers=TEXT]",
        "prefix:P",
    ]


def test_help_loads_no_torch() -> None:
    code = "import sys, fusionkit.methods as m; m.REGISTRY.usages; print({'torch', 'peft'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("text", "what", "expected", "remedy"),
    [
        ("houlsbi:64", "unknown method 'houlsbi'", "one of bitfit, diff-prune, frozen", "'houlsby:m'"),
        ("ful", "unknown method 'ful'", "top:m", "'full'"),
        ("houlsby", "method 'houlsby' is not complete", HOUSLBY, "write it as expected"),
        ("houlsby:64,shar=no", "unknown option of method 'houlsby' 'shar'", "layers, m, norms, share", "'share'"),
        ("houlsby:64,share=layers", "unknown share of method 'houlsby' 'layers'", "layer, no, three", "'layer'"),
        ("houlsby:64,norms=maybe", "unknown norms of method 'houlsby' 'maybe'", "no, yes", ""),
        ("houlsby:wide", "m of method 'houlsby' is no integer", HOUSLBY, "write it as expected"),
        ("houlsby:0", "there are no such adapters", "m at least 1", "houlsby:64"),
        ("lora:8,dropout=high", "dropout of method 'lora' is no number", "lora:r", "write it as expected"),
        ("lora:8,dropout=1", "there is no such LoRA", "below 1", "lora:8"),
        ("prompt:-1", "there is no such prompt", "P at least 1", "prompt:20"),
        ("prefix:0", "there is no such prefix", "P at least 1", "prefix:20"),
        ("top:0", "there are no such top layers", "m at least 1", "frozen"),
        ("pals:205", "there are no such projected attention layers", "multiple of its heads", "204"),
        ("low-rank:0", "there are no such low-rank layers", "h at least 1", "low-rank:100"),
        ("diff-prune:target=0", "there is no such diff pruning", "target and fix above 0", "in that range"),
        ("diff-prune:target=nan", "there is no such diff pruning", "target and fix above 0", "in that range"),
        ("diff-prune:fix=0", "there is no such diff pruning", "target and fix above 0", "in that range"),
        ("full:3", "method 'full' takes no options", "full", ""),
    ],
)
def test_a_method_that_does_not_fit_is_refused(text: str, what: str, expected: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_method(text)
    assert caught.value.what == what
    assert expected in (caught.value.expected or "")
    assert remedy in (caught.value.remedy or "")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("top:4", "the encoder has fewer than 4 layers"),
        ("houlsby:4,layers=7:", "no layer is chosen"),
        ("houlsby:4,layers=three", "these layers do not exist"),
        ("houlsby:4,layers=:1", "houlsby has no such span of layers"),
        ("pals:6,layers=9:12", "no layer is chosen"),
    ],
)
def test_layers_that_an_encoder_does_not_have_are_refused(
    encoder: Callable[[str], Any], method: str, what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        apply(encoder("bert"), parse_method(method))
    if method == "top:4":
        with pytest.raises(UsageError, match=what):
            parse_method(method).lowest_layer(3)


@pytest.mark.parametrize(
    ("kind", "own"), [("Bert", {}), ("MobileBert", {"embedding_size": 8, "intra_bottleneck_size": 8})]
)
def test_places_are_not_guessed_where_feed_forward_networks_are_no_wider_than_states(
    kind: str, own: dict[str, int]
) -> None:
    hf: Any = transformers
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = getattr(hf, f"{kind}Model")(getattr(hf, f"{kind}Config")(**sizes, **own, vocab_size=30))
    with pytest.raises(UsageError, match=f"the places for adapters in {kind}Model cannot be found") as caught:
        apply(model, parse_method("houlsby:4"))
    assert caught.value.expected == "feed-forward networks wider than 16"


def test_a_feed_forward_network_narrower_than_the_states_is_told_from_attention() -> None:
    hf: Any = transformers
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 4}
    model = hf.BertModel(hf.BertConfig(**sizes, vocab_size=30))
    [place], layer = structure_of(model).places, model.encoder.layer[0]
    assert (place.attention, place.down) == (layer.attention.output.dropout, layer.output.dense)


def test_a_text_that_leaves_no_room_for_the_prompt_is_refused(encoder: Callable[[str], Any]) -> None:
    """The tables of the test's encoders have 40 positions; RoBERTa's first two stand for padding."""
    for kind, most in (("bert", 40), ("roberta", 38), ("gpt2", 40)):
        attached = apply(encoder(kind), parse_method("prompt:3"))
        attached.model(input_ids=torch.full((1, most - 3), 7))
        with pytest.raises(UsageError, match=f"a text of {most - 2} sub-tokens is too long") as caught:
            attached.model(input_ids=torch.full((1, most - 2), 7))
        assert f"at most {most - 3} sub-tokens" in (caught.value.expected or "")
    apply(encoder("llama"), parse_method("prompt:3")).model(input_ids=torch.full((1, 60), 7))


@pytest.mark.parametrize(("method", "kept"), [("ia3", ""), ("diff-prune", ".location")])
def test_weight_decay_leaves_factors_and_gates_as_they_are(
    encoder: Callable[[str], Any], method: str, kept: str
) -> None:
    attached = apply(encoder("bert"), parse_method(method))
    spec = RunSpec(
        store="s", task="classification", label="l", fusion="last", head="classifier", pool="cls", method=method,
        encoder_lr=1e-3, weight_decay=0.1,
    )  # fmt: skip
    groups = Optimizer(spec, [], attached, 10)._adam.param_groups
    decays = {id(weights): group["weight_decay"] for group in groups for weights in group["params"]}
    left = {name for name, weights in attached.trainable.items() if weights.dim() > 1 and not decays[id(weights)]}
    assert left == {name for name, weights in attached.trainable.items() if weights.dim() > 1 and name.endswith(kept)}


OWN = """
from fusionkit.methods import MethodEntry
from fusionkit.methods.attached import Attached, trains

class Norms:
    entry = MethodEntry(path="normlab:Norms", summary="Train the norms.", paper="none", rates=(1e-3, 2e-3, 3e-3, 4e-3))
    def __init__(self, *, lowest: int = 1):
        self.lowest = lowest
    def attach(self, model, structure):
        layers = structure.parameters().items()
        found = {n: p for n, (layer, p) in layers if layer >= self.lowest and structure.is_norm(n)}
        return Attached(model, structure, trains(model, found), self.lowest)

class Sized(Norms):
    def __init__(self, *, sizes: list = ()):
        self.sizes = sizes

class Rateless(Norms):
    entry = MethodEntry(path="normlab:Rateless", summary="Train the norms.", paper="none", rates=())

class Nothing:
    pass
"""


def test_a_method_of_your_own_is_named_by_its_import_path(
    encoder: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "normlab.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    spec = parse_method("normlab:Norms:lowest=3")
    assert (str(spec), spec.entry.rates[0]) == ("normlab:Norms:lowest=3", 1e-3)
    assert apply(encoder("bert"), spec).count() == 2 * 2 * 16
    with pytest.raises(UsageError, match="'normlab:Nothing' is no method: it is no class with attach"):
        parse_method("normlab:Nothing")
    with pytest.raises(UsageError, match="'normlab:Rateless' is no method: its entry has no rates"):
        parse_method("normlab:Rateless")
    with pytest.raises(UsageError, match="'normlab:Sized' is no method: its option sizes is neither bool, int"):
        parse_method("normlab:Sized")


def test_a_second_method_is_refused(encoder: Callable[[str], Any]) -> None:
    model = encoder("bert")
    apply(model, parse_method("houlsby:4"))
    with pytest.raises(UsageError, match="has a method already"):
        apply(model, parse_method("prompt:3"))


def test_a_method_of_an_extra_names_it_where_it_is_not_installed(
    encoder: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    for method in ("lora:8", "ia3"):
        with pytest.raises(UsageError, match="needs the package peft") as caught:
            apply(encoder("bert"), parse_method(method))
        assert caught.value.remedy == "pip install 'fusionkit[methods]'"
    apply(encoder("bert"), parse_method("houlsby:4"))


@pytest.mark.parametrize("method", ["diff-prune", "full", "pals:6", "houlsby:4"])
def test_a_row_says_whether_several_tasks_can_train_in_turn(encoder: Callable[[str], Any], method: str) -> None:
    spec = parse_method(method)
    told: AbstractContextManager[Any] = nullcontext()
    if spec.entry.shared == "alone":
        told = pytest.raises(UsageError, match="cannot train several tasks in turn")
    with told:
        refuse_turns(apply(encoder("bert"), spec), spec)


def test_added_parts_alone_learn_at_the_rates_of_adapters() -> None:
    for method in ("pals:6", "low-rank:4"):
        assert parse_method(method).rates == METHODS["full"].rates
        assert parse_method(f"{method},encoder=frozen").rates == METHODS["houlsby"].rates
    assert usual_run("pals:6,encoder=frozen")["encoder_lr"] == METHODS["houlsby"].rates[0]


def test_every_row_is_complete() -> None:
    assert len(METHODS) == 12
    for name, entry in METHODS.items():
        assert entry.summary.endswith(".")
        assert "(" in entry.paper
        assert len(set(entry.rates)) == (0 if name == "frozen" else 4)
        assert entry.epochs > 0
        assert callable(method_class(name).attach)
