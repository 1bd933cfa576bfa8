"""The model card: the run's own numbers, in the hub's vocabulary, with names from data that mean nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

import fusionkit
from fusionkit.exported import export_run
from fusionkit.exported.card import escaped, model_card
from fusionkit.store import Store


@pytest.fixture(scope="module")
def exported(
    make_store: Callable[..., Store], fit_run: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A CRF over attention, exported."""
    runs = fit_run(make_store("words"), task="tagging", head="crf", fusions=["attention"])
    folder = tmp_path_factory.mktemp("card") / "head"
    export_run(next(path for path in runs.iterdir() if path.is_dir()), folder)
    return folder


@pytest.fixture
def config(exported: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((exported / "config.json").read_text())
    return found


def test_the_front_matter_is_the_hubs_and_holds_every_score(exported: Path, config: dict[str, Any]) -> None:
    data = ModelCard.load(exported / "README.md").data
    assert (data.library_name, data.pipeline_tag, data.get("base_model")) == ("fusionkit", "token-classification", None)
    assert data.tags == ["fusionkit", "late-fusion", "attention"]
    assert data.metrics == ["accuracy", "f1", "precision", "recall"]
    assert data.eval_results is not None
    told = {(result.dataset_split, result.metric_name): result.metric_value for result in data.eval_results}
    assert told == {("validation", name): value for name, value in config["scores"]["validation"].items()}
    assert {result.dataset_name for result in data.eval_results} == {"letters"}
    assert {(r.metric_name, r.metric_type) for r in data.eval_results} >= {("word_accuracy", "accuracy"), ("f1", "f1")}


def test_the_card_tells_scores_training_parameters_use_and_limits(exported: Path, config: dict[str, Any]) -> None:
    text = (exported / "README.md").read_text()
    for section in ("Scores", "Use", "Encoder", "Parameters", "Training", "Labels", "Limits"):
        assert text.count(f"\n## {section}\n") == 1
    assert f"| f1 | {config['scores']['validation']['f1']:.4f} |" in text
    assert "| lr | 0.01 |" in text
    assert "| epochs | 2 |" in text
    assert "| fusion | 16 |" in text
    assert f"| weights, sha256 | {config['encoding']['encoder']['weights']} |" in text
    assert 'encoder="FOLDER OF THE ENCODER"' in text
    assert "there are no probabilities" in text
    assert "over rows of words" in text


@pytest.mark.parametrize(
    ("head", "decides_paths"),
    [
        ("crf", True), ("bilstm-crf", True), ("classifier+crf", True), ("topic=classifier,slots=bilstm-crf", True),
        ("tagger", False), ("classifier+tagger", False),
    ],
)  # fmt: skip
def test_a_crf_is_said_to_have_no_probabilities(config: dict[str, Any], head: str, decides_paths: bool) -> None:
    card = model_card({**config, "spec": {**config["spec"], "head": head}})
    assert ("there are no probabilities" in card.text) is decides_paths


@pytest.mark.parametrize(
    ("kind", "base_model", "argument"),
    [("hub", "jane/encoder", False), ("bundled", None, False), ("folder", None, True)],
)
def test_only_a_hub_encoder_is_a_base_model(
    config: dict[str, Any], kind: str, base_model: str | None, argument: bool
) -> None:
    card = model_card({**config, "encoder": "jane/encoder", "encoder_kind": kind})
    assert card.data.get("base_model") == base_model
    assert ("encoder=" in card.text) is argument


HOSTILE = [
    "a | b", "line\nbreak\n---\nlicense: mit", "<script>alert(1)</script>", "[x](javascript:x)", "# title",
    "*bold* _it_", "`code`", "www.evil.example", "https://evil.example", "@everyone", "x: y", "\u202egnp.exe",
    "{{ 7*7 }}", "&lt;b&gt;", "\\", "'quote\"", "- item", "!!python/object:os.system", "${x}$", "\x00\x1b[31m",
]  # fmt: skip


def named(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The config with a name from elsewhere in each place that can have one."""
    found = config["scores"]["validation"]
    return {
        **config, "data": name, "labels": [name, "O"], "spec": {**config["spec"], "label": name},
        "scores": {name: found}, "over_seeds": {"runs": name, "scores": {name: {}}}, "floors": {name: {name: found}},
    }  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_names_from_data_stay_plain_words(config: dict[str, Any], name: str) -> None:
    content = str(model_card(named(config, name)))
    front, body = content.removeprefix("---\n").split("\n---\n", 1)
    plain = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    read = yaml.safe_load(front)
    results = read["model-index"][0]["results"]
    assert results[0]["dataset"]["name"] == plain
    assert read["model-index"][0]["name"] == f"{plain} (attention, crf)"
    assert {*read} == {"library_name", "metrics", "pipeline_tag", "tags", "model-index"}
    assert len(body.splitlines()) == len(str(model_card(named(config, "plain"))).split("\n---\n", 1)[1].splitlines())
    assert ModelCard(content).data.to_dict() == read  # type: ignore[no-untyped-call]
    # As a Markdown reader understands it: words, no mark-up.
    inline = [token for token in MarkdownIt("commonmark").enable("table").parse(body) if token.type == "inline"]
    [labels] = [token for token in inline if token.content.startswith("One of:")]
    assert labels.children is not None
    assert [child.type for child in labels.children] == ["text"]
    assert labels.children[0].content == f"One of: {plain}, O."
    assert not [child for token in inline for child in token.children or () if child.type in ("html_inline", "image")]


def test_bare_addresses_and_mentions_are_broken_for_readers_that_make_links_of_them() -> None:
    found = escaped("www.x.example https://x.example a@b.example")
    assert found == r"www\.x.example https\://x.example a\@b.example"


def test_a_data_set_has_a_type_that_the_hub_takes(config: dict[str, Any]) -> None:
    for name, wanted in (("travel desk/en", "travel-desk-en"), ("", "unnamed"), ("été", "été"), ("--", "unnamed")):
        read = yaml.safe_load(str(model_card({**config, "data": name})).split("---")[1])
        assert read["model-index"][0]["results"][0]["dataset"]["type"] == wanted


def test_a_license_and_a_language_can_be_told(exported: Path, tmp_path: Path) -> None:
    head = fusionkit.FusedHead.from_pretrained(exported)
    head.save_pretrained(tmp_path / "licensed", model_card_kwargs={"license": "mit", "language": "en"})
    data = ModelCard.load(tmp_path / "licensed" / "README.md").data
    assert (data.license, data.language, data.library_name) == ("mit", "en", "fusionkit")


def test_a_regression_has_no_labels_and_its_correlations_the_hubs_names(
    make_store: Callable[..., Store], fit_run: Callable[..., Path], tmp_path: Path
) -> None:
    runs = fit_run(make_store("mean"), task="regression", label="share", fusions=["linear"])
    export_run(next(path for path in runs.iterdir() if path.is_dir()), tmp_path / "head")
    card = ModelCard.load(tmp_path / "head" / "README.md")
    assert card.data.metrics == ["pearsonr", "spearmanr"]
    assert "## Labels" not in card.text
    assert "labels above" not in card.text


def test_a_card_says_which_split_was_scored(config: dict[str, Any]) -> None:
    validation = config["scores"]["validation"]
    tested = str(model_card({**config, "scores": {"validation": validation, "test": validation}}))
    assert "Scored on test, which was read once. The epoch was chosen by validation." in tested
    assert "Scores are fractions from 0 to 1" in tested
    flattered = str(model_card({**config, "scores": {"validation": validation}}))
    assert "Scored on validation, which also chose the epoch: the score is optimistic." in flattered
