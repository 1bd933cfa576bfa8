"""An encoder that brings Python code of its own: it is encoded with, trained and used where the user trusts it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from fusionkit.cli.fit import fit as fit_command
from fusionkit.cli.run import run as run_command
from fusionkit.encode.job import make_job
from fusionkit.encode.shard import Shard, encode_shard
from fusionkit.encoder import load_encoder
from fusionkit.errors import UntrustedCodeError, UsageError
from fusionkit.evaluation.evaluate import evaluate
from fusionkit.fit import RunsFolder, fit
from fusionkit.fit.executor.context import SweepContext, open_context, opening_of
from fusionkit.fit.sweep.blocks import expand_blocks
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec, RunSpec
from fusionkit.store import Store, open_store

CODE = """
from transformers import BertConfig, BertModel

class OwnConfig(BertConfig):
    model_type = "own-bert"

class OwnModel(BertModel):
    config_class = OwnConfig
"""


@pytest.fixture(scope="module")
def strange(model_folder: Path, source_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store by the tiny encoder in a folder that names its own classes."""
    folder = tmp_path_factory.mktemp("strange") / "encoder"
    shutil.copytree(model_folder, folder)
    (folder / "own.py").write_text(CODE)
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "own-bert", "auto_map": own}))
    opened, place = open_source(str(source_folder)), folder.parent / "towns.store"
    encoder = load_encoder(str(folder), device="cpu", words=True, trust_remote_code=True)
    spec = EncodeSpec(encoder=str(folder), rows="tokens", trust_remote_code=True)
    encode_shard(make_job(opened, guess_columns(opened), place, spec, encoder), Shard(1, 1))
    return open_store(place)


def test_its_code_runs_only_where_it_is_trusted(
    strange: Store, specs: Callable[..., list[RunSpec]], tmp_path: Path
) -> None:
    (spec,) = specs(strange, methods=("bitfit",))
    with pytest.raises(UntrustedCodeError) as caught:
        fit(strange, [spec], RunsFolder(tmp_path / "runs"))
    assert "--trust-remote-code" in str(caught.value.remedy)
    words = "--task tagging --label tags --head linear-tagger --fusion last --method bitfit --epochs 2 --batch-size 8"
    command = [str(strange.path), "--out", str(tmp_path / "runs"), *words.split(), "--floor", "none"]
    planned = CliRunner().invoke(fit_command, [*command, "--dry-run"], standalone_mode=False)
    assert isinstance(planned.exception, UntrustedCodeError)
    for flags in (["--trust-remote-code", "--dry-run"], ["--trust-remote-code"]):
        done = CliRunner().invoke(fit_command, [*command, *flags], standalone_mode=False)
        assert done.exception is None
    record = RunsFolder(tmp_path / "runs").record(spec)
    assert record is not None
    assert record["status"] == "finished"
    (found,) = evaluate(tmp_path / "runs" / spec.digest, data=strange.path, split="test", trust_remote_code=True)
    assert found.scores["f1"] == pytest.approx(record["score"])


def test_a_study_that_trusts_it_can_be_forecast(strange: Store, source_folder: Path, tmp_path: Path) -> None:
    words = "store: towns, label: tags, head: linear-tagger, fusion: last, method: bitfit, epochs: 2, floor: none"
    (tmp_path / "study.yaml").write_text(
        f"encoder: {strange.path.parent}/encoder\nrows: tokens\nsources: {{towns: {source_folder}}}\n"
        f"sweeps: {{tags: {{{words}}}}}\n"
    )
    command = [str(tmp_path / "study.yaml"), "--out", str(tmp_path / "work"), "--dry-run", "--trust-remote-code"]
    done = CliRunner().invoke(run_command, command, standalone_mode=False)
    assert done.exception is None


def test_a_run_over_it_starts_from_the_text(strange: Store, specs: Callable[..., list[RunSpec]]) -> None:
    """Whether its code may run is not known when the runs are planned."""
    (spec,) = specs(strange, methods=("top:1",))
    assert spec.from_layer is None
    with pytest.raises(UsageError, match="cannot be counted here"):
        expand_blocks(strange, [{"methods": ("houlsby",), "budget_per_task": 5000, "label": "tags"}])


def test_other_processes_trust_it_too(strange: Store) -> None:
    for trusted in (False, True):
        opening = opening_of(SweepContext(strange, trust_remote_code=trusted))
        assert opening is not None
        assert open_context(opening).trust_remote_code == trusted
