"""An encoder by hub id, out of a cache laid out as the hub's client lays it out, without the network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from fusionkit.encoder import load_encoder

MAIN, OTHER = "a" * 40, "b" * 40
# The cache's place and the offline switch are read when the client is imported: hence another process.
SCRIPT = """
import json, sys
from fusionkit.encoder import load_encoder
from fusionkit.errors import FusionkitError
found = []
for name, revision in json.loads(sys.argv[1]):
    try:
        encoder = load_encoder(name, revision=revision)
        found.append([encoder.layers, encoder.sentence_rows, encoder.identity])
    except FusionkitError as error:
        found.append([type(error).__name__, str(error)])
print(json.dumps(found))
"""
ASKED: list[list[str | None]] = [
    ["org/tiny", None],
    ["org/tiny", "old"],
    ["org/tiny", OTHER],
    ["org/tiny", "none"],
    ["org/absent", None],
]


@pytest.fixture(scope="module")
def answers(tiny: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What loading said for each of ``ASKED``; two revisions are in the cache, one weight apart."""
    home = tmp_path_factory.mktemp("home")
    repository = home / "hub" / "models--org--tiny"
    for revision in (MAIN, OTHER):
        shutil.copytree(tiny("bert").folder, repository / "snapshots" / revision)
    weights = load_file(repository / "snapshots" / OTHER / "model.safetensors")
    weights["embeddings.LayerNorm.bias"][0] += 1.0
    save_file(weights, repository / "snapshots" / OTHER / "model.safetensors", metadata={"format": "pt"})
    pooling = repository / "snapshots" / MAIN / "1_Pooling" / "config.json"
    pooling.parent.mkdir()
    pooling.write_text(json.dumps({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(MAIN)
    (repository / "refs" / "old").write_text(OTHER)

    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(ASKED)],
        env={**kept, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    return dict(zip([f"{name}@{revision}" for name, revision in ASKED], json.loads(lines[0]), strict=True))


def test_a_hub_id_is_read_at_its_main_revision(answers: dict[str, list[Any]], tiny: Callable[[str], Any]) -> None:
    layers, _, identity = answers["org/tiny@None"]
    local = load_encoder(str(tiny("bert").folder)).identity
    assert layers == 4
    assert identity == {**local, "revision": MAIN}
    assert local["revision"] is None


@pytest.mark.parametrize("revision", ["old", OTHER])
def test_another_revision_is_another_identity(answers: dict[str, list[Any]], revision: str) -> None:
    main, other = answers["org/tiny@None"][2], answers[f"org/tiny@{revision}"][2]
    assert other["revision"] == OTHER
    assert other["weights"] != main["weights"]
    assert other["tokenizer"] == main["tokenizer"]


def test_the_pooling_of_a_hub_encoder_is_known_by_revision(answers: dict[str, list[Any]]) -> None:
    assert answers["org/tiny@None"][1] == "mean"
    assert answers["org/tiny@old"][1] == "cls"


@pytest.mark.parametrize("asked", ["org/tiny@none", "org/absent@None"])
def test_what_the_cache_does_not_hold_is_one_error(answers: dict[str, list[Any]], asked: str) -> None:
    kind, message = answers[asked]
    assert kind == "EncoderError"
    assert f"cannot load the encoder {asked.split('@')[0]!r}" in message
    assert "its revision" in message


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "mean"}, "mean"),  # since sentence-transformers 6
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
    ],
)
def test_the_pooling_of_a_folder_is_known(
    tiny: Callable[[str], Any], tmp_path: Path, fields: dict[str, Any], rows: str
) -> None:
    folder = shutil.copytree(tiny("bert").folder, tmp_path / "bert")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(fields))
    assert load_encoder(str(folder)).sentence_rows == rows


@pytest.mark.parametrize(
    ("single", "rows"), [("[CLS] $A [SEP]", "cls"), ("$A [SEP] [CLS]", "last"), ("$A [SEP]", "mean")]
)
def test_the_row_of_a_sentence_is_where_its_tokenizer_puts_cls(
    tiny: Callable[[str], Any], tmp_path: Path, single: str, rows: str
) -> None:
    """As XLNet's does: CLS comes last."""
    folder = shutil.copytree(tiny("bert").folder, tmp_path / "bert")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=ids)
    made: Any = PreTrainedTokenizerFast  # untyped
    made(
        tokenizer_object=tokenizer.backend_tokenizer, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
        unk_token="[UNK]",
    ).save_pretrained(folder)  # fmt: skip
    assert load_encoder(str(folder)).sentence_rows == rows
