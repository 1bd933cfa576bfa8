"""The counts of several tasks over BERT-base are those of the papers; a budget is filled and not exceeded."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from click.testing import CliRunner

from fusionkit.cli.main import main
from fusionkit.cli.plan import plan
from fusionkit.errors import UsageError
from fusionkit.specs import RunSpec
from fusionkit.tuning.weights_plan import ALONE, WeightsPlan

BERT = 109_482_240
# By method and fusion, of Stickland and Murray (2019) and Houlsby et al. (2019), what a task has for itself.
COUNTS = {
    ("full", "last"): 0,
    ("pals:204,biases=no", "last"): 1_811_520,
    ("pals:204", "last"): 1_819_836,
    ("pals:84,share=no,biases=no", "last"): 1_802_304,
    ("pals:84,share=no", "last"): 1_815_552,
    ("low-rank:100,biases=no", "last"): 1_843_200,
    ("low-rank:100", "last"): 1_853_616,
    ("pals:276,layers=-6:", "last"): 1_801_116,
    ("pals:276,layers=1:7,biases=no", "last"): 1_795_104,
    ("full", "projected-attention:204"): 1_320_444,
    ("full", "extra-layers:1"): 7_087_872,
    ("houlsby:64,share=layer", "last"): 1_189_632,
    ("houlsby:64", "last"): 2_379_264,
    ("houlsby:64,share=three", "last"): 396_544,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BERT-base's configuration, without any weights."""
    found = tmp_path_factory.mktemp("bert")
    hf: Any = transformers
    hf.BertConfig().save_pretrained(found)
    return found


def test_the_counts_are_those_of_the_papers(folder: Path) -> None:
    found = WeightsPlan(str(folder), 8)
    assert (found.encoder, found.depth, found.hidden) == (BERT, 12, 768)
    for (method, fusion), count in COUNTS.items():
        row = found.of(method, fusion)
        assert (row.per_task, row.bytes_per_task, row.total) == (count, 4 * count, BERT + 8 * count), method
        assert row.multiple == pytest.approx(row.total / BERT)
    assert round(found.of("pals:204").multiple, 2) == 1.13
    with pytest.raises(UsageError, match="diff-prune cannot train several tasks in turn"):
        found.of("diff-prune")


def test_a_budget_is_filled_and_not_exceeded(model_folder: Path) -> None:
    found = WeightsPlan(str(model_folder), 3)
    rows = {row.kind: row for row in found.usual(budget=2000)}
    for kind, row in rows.items():
        assert row.per_task <= 2000 or kind == ALONE
    low, adapters = rows["low rank"], rows["adapters (Houlsby)"]
    assert (low.method, low.per_task) == ("low-rank:19", 3 * (2 * 16 * 19 + 19 + 16))
    assert (adapters.method, adapters.per_task) == ("houlsby:9", 6 * (2 * 16 * 9 + 9 + 16))
    assert rows[ALONE].total == 3 * found.encoder


def test_the_command_prints_methods_as_fit_takes_them(model_folder: Path) -> None:
    given = ["--tasks", "3", "--encoder", str(model_folder)]
    done = CliRunner().invoke(plan, [*given, "--method", "houlsby:4", "--json"], catch_exceptions=False)
    (row,) = json.loads(done.output)
    assert (row["method"], row["per_task"]) == ("houlsby:4", 6 * (2 * 16 * 4 + 4 + 16))
    chosen = [*given, "--method", "houlsby", "--method", "full", "--budget-per-task", "2000", "--json"]
    done = CliRunner().invoke(plan, chosen, catch_exceptions=False)
    assert [row["method"] for row in json.loads(done.output)] == ["houlsby:9", "full"]
    with pytest.raises(UsageError, match="--budget-per-task sets the width"):
        CliRunner().invoke(plan, [*given, "--method", "full", "--budget-per-task", "9"], catch_exceptions=False)


@pytest.fixture
def albert(tmp_path: Path) -> WeightsPlan:
    """An encoder whose layers are one."""
    hf: Any = transformers
    hf.AlbertConfig(
        vocab_size=20, embedding_size=8, hidden_size=16, num_hidden_layers=4, num_attention_heads=2,
        intermediate_size=32,
    ).save_pretrained(tmp_path)  # fmt: skip
    return WeightsPlan(str(tmp_path), 3)


def test_kinds_that_an_encoder_cannot_take_are_left_out(albert: WeightsPlan) -> None:
    """One layer has no upper half."""
    kinds = [row.kind for row in albert.usual()]
    assert "PALs, shared over layers" in kinds
    assert "PALs, top half" not in kinds


@pytest.mark.parametrize("method", ["full", "bitfit"])
def test_a_rate_for_each_layer_needs_layers_of_their_own(albert: WeightsPlan, method: str) -> None:
    """All layers would get the rate of the first."""
    run = RunSpec(store="", task="", label="", fusion="last", head="", method=method)
    albert.check(run)
    with pytest.raises(UsageError, match="--layer-decay cannot be used with AlbertModel") as caught:
        albert.check(replace(run, layer_decay=0.9))
    assert caught.value.received == "one layer that runs 4 times"
    assert "leave it out" in (caught.value.remedy or "")


def test_what_a_terminal_cannot_encode_is_escaped(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has a ×. A command must not fail on it after its work."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    words = ["plan", "--tasks", "3", "--encoder", str(model_folder), "--method", "full"]
    for more in ([], ["--json"]):
        printed = io.BytesIO()
        monkeypatch.setattr(sys, "argv", ["fusionkit", *words, *more])
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
        with pytest.raises(SystemExit) as ended:
            main()
        sys.stdout.flush()
        assert ended.value.code == 0
        assert printed.getvalue().isascii()
    assert json.loads(printed.getvalue())[0]["method"] == "full"
