"""What ``load_encoder`` refuses, what it stays silent about, and that the same files give the same identity."""

from __future__ import annotations

import errno
import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_outputs import BaseModelOutput

from fusionkit.encoder import load_encoder
from fusionkit.encoder.loading import tokenizer_of
from fusionkit.errors import EncoderError, UsageError
from fusionkit.store.same_encoder import refuse_other_encoder

hf: Any = transformers


class MuteConfig(hf.PretrainedConfig):  # type: ignore[misc]
    model_type = "mute-for-tests"
    hidden_size = 4


class MuteModel(hf.PreTrainedModel):  # type: ignore[misc]
    """A model that keeps its layers to itself."""

    config_class = MuteConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embed = torch.nn.Embedding(200, 4)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **unused: Any) -> Any:
        return BaseModelOutput(last_hidden_state=self.embed(input_ids))


hf.AutoConfig.register(MuteConfig.model_type, MuteConfig, exist_ok=True)
hf.AutoModel.register(MuteConfig, MuteModel, exist_ok=True)


@pytest.fixture
def copy(tiny: Callable[[str], Any], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a tiny encoder's folder, to spoil."""
    return lambda name: Path(shutil.copytree(tiny(name).folder, tmp_path / name))


def refusal(folder: Path) -> EncoderError:
    with pytest.raises(EncoderError) as caught:
        load_encoder(str(folder))
    assert str(folder) in str(caught.value)
    return caught.value


def without(folder: Path, prefix: str) -> int:
    """Drop the weights of this prefix from a checkpoint."""
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(prefix)}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return len(weights) - len(kept)


@pytest.mark.parametrize(
    ("name", "prefix", "count"),
    [
        ("bert", "encoder.layer.1.output.dense", 2),
        ("roberta", "embeddings.word_embeddings.weight", 1),
        ("gpt2", "h.2.mlp", 4),
        ("t5", "encoder.block.0.layer.0.SelfAttention.q", 1),
        ("t5", "shared.weight", 1),
        ("bart", "encoder.embed_positions", 1),
    ],
)
def test_a_checkpoint_without_some_weights_is_refused(
    copy: Callable[[str], Path], name: str, prefix: str, count: int
) -> None:
    folder = copy(name)
    assert without(folder, prefix) == count
    error = refusal(folder)
    assert f"lacks {count} of its weights" in error.what
    assert prefix in str(error.received)


def test_a_checkpoint_may_lack_the_decoder(copy: Callable[[str], Path], tiny: Callable[[str], Any]) -> None:
    folder = copy("bart")
    assert without(folder, "decoder.layers.0") > 0
    identity = load_encoder(str(folder)).identity
    assert identity["weights"] == load_encoder(str(tiny("bart").folder)).identity["weights"]


def test_a_checkpoint_without_a_pooler_has_one_identity(copy: Callable[[str], Path]) -> None:
    """The library fills a missing pooler with other random numbers at each loading."""
    folder = copy("bert")
    whole = load_encoder(str(folder)).identity["weights"]
    assert without(folder, "pooler") == 2
    first, second = (load_encoder(str(folder)) for _ in range(2))
    assert not torch.equal(first.model.pooler.dense.weight, second.model.pooler.dense.weight)
    assert first.identity == second.identity
    assert first.identity["weights"] != whole


def test_one_changed_weight_changes_the_identity(copy: Callable[[str], Path], tiny: Callable[[str], Any]) -> None:
    folder = copy("bert")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.2.output.dense.bias"][3] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    before, after = (load_encoder(str(place)).identity for place in (tiny("bert").folder, folder))
    assert before["weights"] != after["weights"]
    assert before["tokenizer"] == after["tokenizer"]


def test_a_setting_that_the_weights_do_not_show_changes_the_identity(
    copy: Callable[[str], Path], tiny: Callable[[str], Any]
) -> None:
    folder = copy("bert")
    plain = load_encoder(str(tiny("bert").folder)).identity
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 1e-3, "id2label": {"0": "other"}}))
    other = load_encoder(str(folder)).identity
    assert other == {**plain, "config": {**plain.get("config", {}), "layer_norm_eps": 1e-3}}
    assert json.loads(json.dumps(other)) == other
    with pytest.raises(EncoderError, match="its config differs") as caught:
        refuse_other_encoder(other, plain, "the encoder is another", "put it back")
    assert "layer_norm_eps 0.001" in str(caught.value.received)


def test_the_bundled_encoder_has_the_usual_settings_of_its_kind() -> None:
    """So its identity is that of weights and tokenizer, as the digests on record have it."""
    assert "config" not in load_encoder("minilm", device="cpu").identity


def test_a_long_text_loses_its_end_whatever_the_tokenizer_prefers(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    plain = load_encoder(str(folder))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "truncation_side": "left"}))
    text = "rain fell again on the town and then the sun came out"
    found = load_encoder(str(folder)).tokenize([text], None, 6).token_ids
    assert found.tolist() == plain.tokenize([text], None, 6).token_ids.tolist()


def test_a_token_that_only_the_tokenizer_has_is_refused_by_name(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["[E1]"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    encoder = load_encoder(str(folder), device="cpu")
    known = encoder.tokenize(["rain fell"], None, 9).token_ids
    assert known.max() < encoder.embeddings == encoder.model.config.vocab_size
    with pytest.raises(EncoderError, match=r"has no embedding for the token '\[E1\]'") as caught:
        encoder.tokenize(["rain", "rain [E1] fell"], None, 9)
    assert "resize_token_embeddings" in str(caught.value.remedy)


def test_padding_that_only_the_tokenizer_has_is_replaced(copy: Callable[[str], Path]) -> None:
    folder = copy("gpt2")
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(folder)
    encoder = load_encoder(str(folder), device="cpu")
    assert encoder.tokenizer.pad_token_id >= encoder.embeddings
    assert encoder.pad_id == 0


@pytest.mark.parametrize("pad", [0, 1])
def test_positions_that_a_table_keeps_for_padding_are_left_out(copy: Callable[[str], Path], pad: int) -> None:
    """data2vec counts them from behind the padding index, as RoBERTa does."""
    folder = copy("roberta")
    config = hf.Data2VecTextConfig(
        vocab_size=400, max_position_embeddings=20, pad_token_id=pad, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=16,
    )  # fmt: skip
    hf.Data2VecTextModel(config).save_pretrained(folder)
    encoder = load_encoder(str(folder), device="cpu")
    assert encoder.max_length == 20 - pad - 1
    longest = torch.full((1, encoder.max_length), 5)
    assert encoder.model(input_ids=longest).last_hidden_state.shape[1] == encoder.max_length
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        encoder.model(input_ids=torch.full((1, encoder.max_length + 1), 5))


@pytest.mark.parametrize(("owner", "name"), [(hf.AutoModel, "from_pretrained"), (hf.BertModel, "forward")])
def test_short_memory_is_not_taken_for_a_wrong_encoder(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    def short(*args: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(owner, name, short)
    error = refusal(copy("bert"))
    assert "does not fit into memory" in str(error.what)
    assert "Tried to allocate" in str(error.received)


def test_a_full_disk_of_the_cache_is_told(copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hf.AutoModel, "from_pretrained", full)
    assert "the disk is full" in str(refusal(copy("bert")).what)


def test_use_does_not_change_the_identity(tiny: Callable[[str], Any]) -> None:
    encoder = load_encoder(str(tiny("roberta").folder))
    encoder.tokenize(["rain fell again"], None, 4)
    assert load_encoder(str(tiny("roberta").folder)).identity == encoder.identity


def test_pickled_weights_are_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    error = refusal(folder)
    assert "model.safetensors" in str(error.received)
    assert "save it again with `model.save_pretrained(FOLDER)`" in str(error.remedy)
    (folder / "pytorch_model.bin").unlink()
    assert "check the path" in str(refusal(folder).remedy)


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "deberta-v2", "modernbert", "gpt2", "t5"])
@pytest.mark.parametrize("config", [True, False], ids=["with-its-config", "with-nothing"])
def test_an_encoder_without_a_tokenizer_is_refused(copy: Callable[[str], Path], name: str, config: bool) -> None:
    """The library would make one up that knows its special tokens alone."""
    folder = copy(name)
    (folder / "tokenizer.json").unlink()
    if not config:
        (folder / "tokenizer_config.json").unlink()
    assert "tokenizer.json" in str(refusal(folder).expected)


def test_an_encoder_without_hidden_states_is_refused_by_name(tiny: Callable[[str], Any], tmp_path: Path) -> None:
    hf.BertTokenizerFast(tokenizer_object=tiny("bert").tokenizer).save_pretrained(tmp_path)
    MuteModel(MuteConfig()).save_pretrained(tmp_path)
    error = refusal(tmp_path)
    assert "MuteModel" in error.what
    assert "no hidden states" in error.what


def test_layers_of_different_widths_are_refused(tiny: Callable[[str], Any], tmp_path: Path) -> None:
    """OPT's smallest projects its last layer down."""
    hf.BertTokenizerFast(tokenizer_object=tiny("bert").tokenizer).save_pretrained(tmp_path)
    config = hf.OPTConfig(
        vocab_size=120, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=8
    )
    hf.OPTModel(config).save_pretrained(tmp_path)
    error = refusal(tmp_path)
    assert "OPTModel" in error.what
    assert error.received == "(length, width) of (8, 16), (8, 8)"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "no-such-architecture"}'),
        ("model.safetensors", b"\x08\x00"),
        ("tokenizer.json", b"[]"),
        ("1_Pooling/config.json", b""),
        ("1_Pooling/config.json", b"[1]"),
    ],
)
def test_a_damaged_file_is_one_error(copy: Callable[[str], Path], file: str, content: bytes) -> None:
    folder = copy("bert")
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_bytes(content)
    assert "cannot load the encoder" in refusal(folder).what


def test_weights_of_another_shape_are_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    assert "cannot load the encoder" in refusal(folder).what


def test_a_file_is_no_encoder(tiny: Callable[[str], Any]) -> None:
    with pytest.raises(UsageError, match="is a file"):
        load_encoder(str(tiny("bert").folder / "config.json"))


@pytest.mark.parametrize("name", ["minilmm", "mini-lm", "MiniLM", "milm"])
def test_a_misspelt_name_is_refused_without_the_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *of, **how: asked.append(of))
    monkeypatch.setattr(socket.socket, "connect", lambda *of: asked.append(of))
    with pytest.raises(UsageError, match=f"unknown encoder '{name}'") as caught:
        load_encoder(name)
    assert "did you mean 'minilm'?" in str(caught.value)
    assert asked == []


@pytest.mark.parametrize("name", ["someone/minilm", "./minilm", "/no/such/folder", "bert-of-nobody"])
def test_a_name_that_is_nowhere_says_what_would_do(name: str) -> None:
    with pytest.raises(EncoderError) as caught:
        load_encoder(name)
    assert name in caught.value.what
    assert "a folder with config.json" in str(caught.value.expected)
    assert "\n" not in str(caught.value.received)


@pytest.mark.parametrize("device", ["cuda:99", "tpu-of-nobody"])
def test_a_device_that_is_not_there_is_refused_before_loading(device: str) -> None:
    with pytest.raises(UsageError, match=f"device '{device}' cannot be used"):
        load_encoder("/no/such/folder", device=device)


def test_a_revision_of_the_bundled_encoder_is_refused() -> None:
    with pytest.raises(UsageError, match="has no revisions"):
        load_encoder("minilm", revision="main")


def test_an_untrained_encoder_has_the_weights_of_its_seed_and_no_others(tiny: Callable[[str], Any]) -> None:
    place = str(tiny("bert").folder)
    before = torch.random.get_rng_state()
    trained, one, again, other = (
        load_encoder(place, device="cpu", untrained=seed) for seed in (None, 7, 7, 8)
    )  # fmt: skip
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one.identity == again.identity
    assert len({each.identity["weights"] for each in (trained, one, other)}) == 3
    assert one.identity["untrained"] == 7
    assert "untrained" not in trained.identity
    assert {each.identity["tokenizer"] for each in (trained, one)} == {trained.identity["tokenizer"]}
    assert (one.layers, one.hidden, one.parameters) == (trained.layers, trained.hidden, trained.parameters)
    torch.manual_seed(7)
    wanted = hf.BertModel(hf.AutoConfig.from_pretrained(place)).state_dict()
    assert all(torch.equal(one.model.state_dict()[name], value) for name, value in wanted.items())
    # The name that stores and records keep loads the same.
    assert one.name == f"{place} (untrained 7)"
    assert load_encoder(one.name, device="cpu").identity == one.identity
    assert one.loading is not None
    assert load_encoder(**one.loading).name == one.name


def test_an_adapter_is_no_encoder(copy: Callable[[str], Path]) -> None:
    """With peft, the library would load the model that the file names, and weights that may be pickled."""
    folder = copy("bert")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/other", "peft_type": "LORA"}')
    error = refusal(folder)
    assert "is an adapter of another model" in error.what
    assert "merge_and_unload" in str(error.remedy)


def test_nobody_is_asked_whether_a_tokenizer_may_run_its_code(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = copy("bert"), list[str]()
    (folder / "config.json").write_text('{"model_type": "no-such-architecture"}')
    settings = {"auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    monkeypatch.setattr("builtins.input", asked.append)
    with pytest.raises(EncoderError, match="the tokenizer of"):
        tokenizer_of(str(folder))
    assert asked == []
