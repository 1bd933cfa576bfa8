"""The schema of studies: made from the tables, committed as it is made, kept by every shipped study."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fusionkit.errors import UsageError
from fusionkit.fusions import FUSIONS, fusion_name
from fusionkit.heads import HEADS
from fusionkit.options.tables import FIT
from fusionkit.study import read_study
from fusionkit.study.schema import fusion_pattern, study_schema
from fusionkit.tasks import TASKS

PIPELINES = Path(__file__).parent.parent.parent / "pipelines"
SCHEMA = PIPELINES / "study.schema.json"
STUDIES = sorted(path for path in PIPELINES.glob("*/*.yaml") if path.parent.name != "slurm")
# YAML 1.2, which editors read, takes 2e-3 for a number; PyYAML's rules are those of 1.1.
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def typed(node: Any) -> Any:
    """A YAML node as an editor reads it, the blocks that it takes in (``<<:``) included."""
    if isinstance(node, yaml.MappingNode):
        own = {key.value: value for key, value in node.value}
        taken = own.pop("<<", None)
        blocks = taken.value if isinstance(taken, yaml.SequenceNode) else [taken] if taken else []
        return {
            **{key: value for block in reversed(blocks) for key, value in typed(block).items()},
            **{key: typed(value) for key, value in own.items()},
        }
    if isinstance(node, yaml.SequenceNode):
        return [typed(item) for item in node.value]
    if node.style is None and node.value in ("true", "false"):
        return node.value == "true"
    return json.loads(f"{float(node.value):g}") if node.style is None and NUMBER.fullmatch(node.value) else node.value


def faults(text: str) -> list[str]:
    checker = jsonschema.Draft202012Validator(study_schema())
    return [str(error.json_path) for error in checker.iter_errors(typed(yaml.compose(text, Loader=yaml.BaseLoader)))]


def test_the_committed_schema_is_the_one_that_is_made() -> None:
    """`fusionkit run --schema > pipelines/study.schema.json` makes it anew."""
    made = study_schema()
    jsonschema.Draft202012Validator.check_schema(made)
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == made


def test_it_offers_every_fusion_head_and_task() -> None:
    options = study_schema()["properties"]["fit"]["properties"]
    names = {name: json.dumps(options[name]) for name in ("fusion", "head", "task")}
    assert all(f'"{name}"' in names["fusion"] or f"{name}:" in names["fusion"] for name in FUSIONS)
    assert all(f'"{name}"' in names["head"] for name in HEADS)
    assert all(f'"{name}"' in names["task"] for name in TASKS)
    block = study_schema()["properties"]["sweeps"]["additionalProperties"]["properties"]
    assert set(block) == {*FIT, "store", "evaluate-on", "runs", "tasks"}


@pytest.mark.parametrize(
    "text",
    ["last", "layer:3", "layer:-1", "linear:norm=token,gamma=no", "dwatt:scale=yes", "extra-layers:2", "extra-layers",
     "liner", "linear:gama=no", "linear:gamma=maybe", "last:scale=yes", "layer:x", "attention:"],
)  # fmt: skip
def test_its_pattern_of_fusions_takes_what_fit_takes(text: str) -> None:
    try:
        fusion_name(text)
        taken = True
    except UsageError:
        taken = False
    assert bool(re.match(fusion_pattern(), text)) is taken


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_shipped_study_keeps_the_schema_and_can_be_read(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.splitlines()[0] == "# yaml-language-server: $schema=../study.schema.json"
    assert faults(text) == []
    for name in set(re.findall(r"\$\{data\}/([\w./-]+)", text)):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    assert read_study(path, [f"data={tmp_path}"]).sweeps


def test_every_paper_has_its_studies_and_says_what_differs() -> None:
    folders = {path.parent for path in STUDIES}
    assert {folder.name for folder in folders} == {
        "adapters", "attention-fusion", "cost", "dwatt", "ladder", "layers-needed", "minilm", "pals", "suite",
    }  # fmt: skip
    assert len(STUDIES) >= 10
    assert [str(folder) for folder in folders if not (folder / "README.md").is_file()] == []
    unnamed = [
        path.name for path in STUDIES if path.name not in (path.parent / "README.md").read_text(encoding="utf-8")
    ]
    assert unnamed == []


def test_the_grid_by_epochs_holds_the_runs_of_the_few_shot_grid(tmp_path: Path) -> None:
    (tmp_path / "conll2003").mkdir()
    study = read_study(PIPELINES / "dwatt" / "figure3.yaml", [f"data={tmp_path}"])
    blocks = [block for sweep in study.sweeps.values() for block in sweep.blocks]
    counted = [
        len(block["fusions"]) * len(block["lrs"]) * len(block["shots"]) * len(block["epochs"]) * block["seeds"]
        for block in blocks
    ]
    rates = {rate for block in blocks for rate in block["lrs"]}
    assert sum(counted) == 6 * 3 * 3 * 5 * len(rates)
    fusions = {fusion for block in blocks for fusion in block["fusions"] if set(block["lrs"]) == rates}
    assert fusions == {"last", "linear", "attention", "concat-affine", "dwatt", "extra-layers:1"}
    assert {(block["shots"], block["epochs"]) for block in blocks} == {((8, 32, 128), (25, 50, 100))}
    of_record = read_study(PIPELINES / "dwatt" / "few-shot-minilm.yaml", [f"data={tmp_path}"])
    part = [block for name in ("grid", "grid-tokens") for block in of_record.sweeps[name].blocks]
    assert {(block["shots"], block["epochs"]) for block in part} == {((8, 16, 32, 64, 128), (50,))}
    assert {
        (b["batch_sizes"], b["validate_on"], b["validate_every"], b["head"], b["label"], b["schedule"]) for b in blocks
    } == {((16,), "800", 10, "tagger", "tags", "linear")}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rows: tokens", "rwos: tokens"),
        ("rows: tokens", "rows: token"),
        ("seeds: 2", "seeds: two"),
        ("seeds: 2", "init-from: base"),
        ("store: one", "stoer: one"),
        ("store: one", "head: tagger"),
        ("fusion: [last, linear]", "fusion: [last, liner]"),
        ("fusion: [last, linear]", "fusion: linear:gama=no"),
        ("label: slots", "head: cfr"),
        ("fusion: [last, linear]", "task: clasification"),
        ("freeze: fusion", "freeze: fusoin"),
        ("by: [sweep,", "by: [swep,"),
        ("baseline: last", "interval: z"),
        ("rows: tokens", "figures: [shot]"),
        ("rows: tokens", "report: maybe"),
        ("rows: tokens", "title: [one, two]"),
        ("rows: tokens", "about: {x: y}"),
    ],
)
def test_what_a_study_is_refused_for_the_schema_marks_too(
    old: str, new: str, written: Callable[..., Any], tiny: str
) -> None:
    wrong = tiny.replace(old, new, 1)
    assert faults(tiny) == []
    assert faults(wrong)
    with pytest.raises(UsageError):
        written(wrong)


def test_the_settings_of_a_cluster_have_their_bounds() -> None:
    text = "sources: {de: {source: x.jsonl}}\ncluster: {kind: slurm, gpus: 1, start_timeout: 60.5, public: true}\n"
    assert faults(text) == []
    assert faults(text.replace("gpus: 1", "gpus: 2"))
    assert faults(text.replace("gpus: 1", "gpu: 1"))


SEVERAL = """
sources: {de: {source: x.jsonl}}
fit: {head: {slots: crf}}
sweeps: {a: {store: de, task: {topic: classification, slots: tagging}, label: [topic=category, {topic: kind}]}}
report: no
"""


def test_a_block_names_several_tasks(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(SEVERAL, encoding="utf-8")
    blocks = read_study(path).sweeps["a"].blocks
    shared = {"task": "topic=classification,slots=tagging", "head": "slots=crf"}
    assert list(blocks) == [shared | {"label": label} for label in ("topic=category", "topic=kind")]
    assert faults(SEVERAL) == []


def test_a_block_takes_in_another_and_its_own_keys_win(tmp_path: Path) -> None:
    text = """
sources: {de: {source: x.jsonl}}
fit: &shared {label: kind, seeds: 2}
sweeps: {a: {<<: *shared, store: de, seeds: 3}, b: {<<: [{head: tagger}, *shared], store: de}}
report: no
"""
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    (first,), (second,) = (sweep.blocks for sweep in read_study(path).sweeps.values())
    assert (first["label"], first["seeds"], second["label"], second["head"]) == ("kind", 3, "kind", "tagger")
    assert faults(text) == []
    assert faults(text.replace("label: kind", "lable: kind"))


@pytest.mark.parametrize(
    ("written", "instead", "what", "seen"),
    [
        ("slots: crf", "slots: classifier", "unknown head for slots 'classifier'", False),
        ("slots: crf", "topik: crf", "unknown task of this run 'topik'", False),
        ("slots: tagging", "slots: taging", "unknown task beside others 'taging'", True),
    ],
)
def test_a_block_of_tasks_that_is_wrong_is_said_with_its_line(
    tmp_path: Path, written: str, instead: str, what: str, seen: bool
) -> None:
    path, text = tmp_path / "study.yaml", SEVERAL.replace(written, instead)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=rf"study\.yaml, line 4: {what}"):
        read_study(path)
    assert bool(faults(text)) == seen  # an editor knows no names across keys
