"""A run without its adapters in a span of layers scores as one whose adapters there do nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fusionkit.cli.ablate import _print
from fusionkit.cli.ablate import ablate as command
from fusionkit.cli.console import out
from fusionkit.cli.run import run as run_study
from fusionkit.errors import StoreError, UsageError
from fusionkit.fit import expand
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.model.checkpoint import open_run
from fusionkit.fit.train.decisions import score
from fusionkit.report import FIGURES
from fusionkit.report.report_data import read_report_data
from fusionkit.runs.ablations import Ablation, ablation_from, fall_text, read_ablation
from fusionkit.runs.folder import RunsFolder
from fusionkit.runs.records_file import KEPT_ABLATION, write_records
from fusionkit.store import Store
from fusionkit.tuning.ablation import ablate
from fusionkit.tuning.encoder import load_tuned
from fusionkit.tuning.live import live_data
from fusionkit.tuning.tokens import TokenSource
from fusionkit.tuning.trained import delta_of, encoder_of_run

Train = Callable[..., dict[str, Any]]


def test_a_span_is_scored_as_if_its_adapters_did_nothing(store: Store, train: Train) -> None:
    found = train(store, methods=["houlsby:6"], encoder_lrs=(3e-3,), lrs=(0.1,), epochs=(8,))
    made = ablate(found["folder"], {store.digest: store})
    assert made.layers == [1, 2, 3]
    assert [span[:2] for span in made.spans] == [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3)]
    assert made.whole == {"": pytest.approx(found["validation_score"])}
    assert read_ablation(found["folder"]) == dataclasses.replace(made, layers=[1, 2, 3])

    run = open_run(found["folder"])
    context = SweepContext(store)
    data = context.load(run.spec)
    for first, last, scores in made.spans:
        delta = delta_of(run)
        for layer in range(first, last + 1):
            for name in delta:  # two adapters a layer, behind attention and behind the feed-forward network
                if name.split(".")[1] in (str(2 * layer - 2), str(2 * layer - 1)) and ".up." in name:
                    delta[name] = torch.zeros_like(delta[name])
        tuned = load_tuned(store, run.spec, torch.device("cpu"))
        tuned.attached.load_delta(delta)
        tuned.attached.train(False)
        live = live_data(data, TokenSource(store), tuned.encoder, store.layers)
        with torch.no_grad():
            expected = score(run.whole, live, live.validation, context.positions(run.spec))
        assert scores[""] == pytest.approx(next(iter(expected.values())))
    assert len({scores[""] for _, _, scores in made.spans}) > 1, "no span changes anything: nothing is tried"


@pytest.mark.parametrize("method", ["pals:6", "low-rank:4", "prefix:2", "lora:4", "ia3"])
def test_parts_that_are_taken_away_everywhere_leave_the_encoder(store: Store, method: str) -> None:
    (spec,) = expand(store, task="tagging", fusions=["last"], methods=[method])
    tuned = load_tuned(store, spec, torch.device("cpu"))
    attached, ids = tuned.attached, torch.tensor([[2, 6, 7, 8, 3]])
    given = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    attached.train(False)
    torch.manual_seed(0)
    with torch.no_grad():
        plain = tuned.encoder.states(*given)[-1] if method != "prefix:2" else None
        own = attached.trainable.values() if attached.parts is None else attached.parts.parameters()
        for weights in own:
            weights.normal_()
        changed = tuned.encoder.states(*given)[-1]
        assert attached.skip is not None
        attached.skip([1])
        one = tuned.encoder.states(*given)
        attached.skip(attached.part_layers)
        without = tuned.encoder.states(*given)[-1]
        attached.skip(())
        torch.testing.assert_close(tuned.encoder.states(*given)[-1], changed, rtol=0, atol=0)
    assert attached.part_layers == (1, 2, 3)
    assert not torch.allclose(one[-1], changed)
    if plain is not None:  # it began as the encoder
        torch.testing.assert_close(without, plain, rtol=0, atol=0)
    assert not torch.allclose(without, one[-1])


def test_a_score_that_is_not_above_zero_has_no_share_to_lose() -> None:
    metrics, whole = {"a": "matthews", "b": "accuracy", "c": "perplexity"}, {"a": -0.2, "b": 0.8, "c": 5.0}
    made = Ablation("d", "pals:4", "validation", 9, [1], metrics, whole, [(1, 1, {"a": 0.1, "b": 0.6, "c": 50.0})])
    assert [fall_text(made.falls(task)[1, 1], 1) for task in whole] == ["–", "25.0", "–"]


def test_the_command_prints_a_table_and_the_report_draws_it(
    store: Store, train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = train(store, tmp_path / "runs", methods=["low-rank:4"], epochs=(1,))
    where = ["--store", str(store.path), "--limit", "6"]
    done = CliRunner().invoke(command, [str(found["folder"]), *where, "--json"], catch_exceptions=False)
    told = json.loads(done.stdout)
    assert (told["examples"], told["method"], len(told["spans"])) == (6, "low-rank:4", 6)
    with pytest.raises(UsageError, match=r"typo\.store holds no store"):
        CliRunner().invoke(command, [str(found["folder"]), *where, "--store", "typo.store"], catch_exceptions=False)
    study = read_report_data([tmp_path / "runs"])
    data = FIGURES["ablation"].data(study)
    assert data is not None
    assert data[["first", "last"]].to_numpy().tolist() == [[1, 1], [1, 2], [1, 3], [2, 2], [2, 3], [3, 3]]
    FIGURES["ablation"].chart(study, data).to_dict()
    full = train(store, tmp_path / "full", methods=["top:1"], max_steps=(1,))
    with pytest.raises(UsageError, match="has no parts by layer"):
        ablate(full["folder"], {store.digest: store})
    with pytest.raises(UsageError, match=r"the store .* is not there"):
        ablate(found["folder"], {})


@pytest.mark.parametrize("method", ["lora:4", "ia3"])
def test_a_trained_run_of_peft_is_scored_without_its_parts(
    store: Store, train: Train, tmp_path: Path, method: str
) -> None:
    own: dict[str, Any] = {"fusions": ["last"], "encoder_lrs": (3e-2,), "lrs": (0.1,), "epochs": (6,)}
    found = train(store, tmp_path / "runs", methods=[method], **own)
    made = ablate(found["folder"], {store.digest: store})
    assert [span[:2] for span in made.spans] == [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3)]
    assert made.whole[""] == pytest.approx(found["validation_score"])
    # Without all parts the run's head reads the encoder as it was.
    run = open_run(found["folder"])
    plain = encoder_of_run(run)
    context = SweepContext(store)
    live = live_data(context.load(run.spec), TokenSource(store), plain, store.layers)
    with torch.no_grad():
        expected = score(run.whole, live, live.validation, context.positions(run.spec))
    assert {(a, b): scores[""] for a, b, scores in made.spans}[1, 3] == next(iter(expected.values()))
    assert made.whole[""] != next(iter(expected.values())), "the parts change nothing: nothing is tried"


@pytest.mark.soak("products")
def test_a_study_draws_what_was_ablated_since(model_folder: Path, source_folder: Path, tmp_path: Path) -> None:
    (study := tmp_path / "study.yaml").write_text(
        f"encoder: {model_folder}\nrows: tokens\nsources: {{towns: {source_folder}}}\n"
        "sweeps:\n  one: {store: towns, label: tags, method: 'houlsby:4', fusion: last, max-steps: 2}\n"
        "figures: [ablation]\nreport: yes\n"
    )
    given = [str(study), "--out", str(tmp_path / "work"), "--json"]

    def made() -> list[str]:
        done = CliRunner().invoke(run_study, given, catch_exceptions=False)
        return [step["step"] for step in json.loads(done.stdout) if step["made"]]

    assert made() == ["encode towns", "fit one", "figures", "report"]
    drawn, page = tmp_path / "work" / "figures" / "ablation.svg", tmp_path / "work" / "report.html"
    assert not drawn.exists()
    assert FIGURES["ablation"].title not in page.read_text()
    (folder,) = [path.parent for path in (tmp_path / "work" / "runs" / "one").glob("*/run.json")]
    CliRunner().invoke(command, [str(folder), "--store", str(tmp_path / "work" / "stores")], catch_exceptions=False)
    assert made() == ["figures", "report"]
    assert drawn.is_file()
    assert FIGURES["ablation"].title in page.read_text()
    assert made() == []


def test_a_study_ablates_the_sweeps_that_it_names(model_folder: Path, source_folder: Path, tmp_path: Path) -> None:
    (study := tmp_path / "study.yaml").write_text(
        f"encoder: {model_folder}\nrows: tokens\nsources: {{towns: {source_folder}}}\n"
        "sweeps:\n  one: {store: towns, label: tags, method: ['top:1', 'houlsby:4'], fusion: last, max-steps: 2}\n"
        "ablate: one\n"
    )

    def made(work: str, *more: str) -> tuple[list[str], str]:
        given = [str(study), "--out", str(tmp_path / work), "--json", *more]
        done = CliRunner().invoke(run_study, given, catch_exceptions=False)
        return [step["step"] for step in json.loads(done.stdout) if step["made"]], done.stderr

    steps, told = made("work")
    assert steps == ["encode towns", "fit one", "ablate one"]
    assert "is left out: the method top:1 has no parts by layer" in told
    assert "6 of 6 spans" in told
    assert made("work")[0] == []
    runs = tmp_path / "work" / "runs" / "one"
    (file,) = runs.glob("*/ablation.json")
    found = file.read_bytes()
    file.unlink()
    assert made("work")[0] == ["ablate one"]
    assert file.read_bytes() == found
    for more in (["--limit", "1"], ["--split", "test"]):  # of another command: not what the study asks for
        stores = str(tmp_path / "work" / "stores")
        CliRunner().invoke(command, [str(file.parent), "--store", stores, *more], catch_exceptions=False)
        assert file.read_bytes() != found
        assert made("work")[0] == ["ablate one"]
        assert file.read_bytes() == found

    file.write_text('{"split": "validation"}')
    with pytest.raises(StoreError, match=r"ablation\.json has a damaged ablation"):
        made("work")
    file.write_bytes(found)

    # A record counts as done only with its ablation: without one there are no weights to ablate.
    records = [{"sweep": "one", **each} for each in RunsFolder(runs).records()]
    for name, kept in (("with", dataclasses.asdict(ablation_from(json.loads(found)))), ("without", None)):
        write_records(tmp_path / name, {}, [{**each, KEPT_ABLATION: kept} for each in records])
        shutil.copytree(tmp_path / "work" / "stores", tmp_path / f"{name}.work" / "stores")
        made(f"{name}.work", "--known", str(tmp_path / name))
        folder = tmp_path / f"{name}.work" / "runs" / "one" / file.parent.name
        assert (folder / "weights.safetensors").is_file() == (kept is None)
        assert (folder / "ablation.json").read_bytes() == found
    study.write_text(study.read_text().replace("ablate: one", "ablate: [one, two]"))
    with pytest.raises(UsageError, match=r"line 6.*two|two.*line 6") as refused:
        made("work")
    assert refused.value.expected == "one of one"


def test_many_layers_stand_in_blocks_that_fit_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    layers = tuple(range(1, 25))
    falls = {(a, b): -(a + b) / 100 for a in layers for b in layers if a <= b}
    found: Any = SimpleNamespace(
        falls=lambda task: falls, layers=layers, metrics={"": "accuracy"}, whole={"": 0.5}, examples=3, split="test"
    )
    _print(found, "")
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= out().width
    blocks = math.ceil(len(layers) / ((out().width - 13) // 7))
    assert told.count("first \\ last") == blocks
    assert len([cell for line in told.splitlines() for cell in line.split() if cell.startswith("-")]) == len(falls)
