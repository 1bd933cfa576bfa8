"""Studies as they are written: what they mean, and one message with its line for what cannot be meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from fusionkit.bundled import travel_desk
from fusionkit.cli.encode import encode
from fusionkit.cli.options.work_options import given_cluster
from fusionkit.cluster import ClusterSettings
from fusionkit.errors import UsageError
from fusionkit.study import read_study
from fusionkit.study.keys import ENCODING
from fusionkit.study.study import Report

Read = Callable[..., Any]
# Options of an encode that a study leaves to the command line.
LEFT = {"source", "device", "trust-remote-code", "out", "overwrite", "budget", "parts", "cluster", "cluster-config",
        "print-job", "workers", "json"}  # fmt: skip


def test_a_source_has_a_key_for_each_option_of_encode() -> None:
    options = {param.opts[0].removeprefix("--"): param for param in encode.params}
    assert set(ENCODING) == set(options) - LEFT
    for name, field in ENCODING.items():
        kind = options[name].type
        assert (field.choices or ()) == tuple(kind.choices if isinstance(kind, click.Choice) else ()), name
        numbers = {type(click.INT): int, type(click.FLOAT): float}
        assert field.kind is next((number for known, number in numbers.items() if isinstance(kind, known)), str), name


def test_a_study_is_sources_sweeps_and_tables(written: Read, data: Path, tiny: str) -> None:
    study = written(tiny)
    assert {name: source.options for name, source in study.sources.items()} == {
        name: {"encoder": "minilm", "rows": "tokens", "layers": "0,6", "source": str(data / name)}
        for name in ("one", "two")
    }
    base, moved = study.sweeps.values()
    assert (base.parts, base.judges, base.begins) == ((("one", None),), (), ())
    assert [(b["label"], b["fusions"], b["seeds"], b["epochs"]) for b in base.blocks] == [
        ("intent", ("last", "linear"), 2, (1,)), ("slots", ("linear",), 2, (1,))
    ]  # fmt: skip
    assert (moved.parts, moved.judges, moved.begins) == ((("one", None), ("two", "50%")), ("two", "one"), ("base",))
    assert study.comparisons["wide"].sweeps == ("base", "moved")
    assert study.comparisons["against"].sweeps == ("base",)
    assert (study.title, study.figures, study.report) == ("study", (), None)


def test_a_text_without_a_value_is_as_if_it_were_not_there(written: Read, tiny: str) -> None:
    assert written(f"title:\nabout:\n{tiny}").title == "study"


def test_the_page_says_what_the_study_says_unless_its_block_does(written: Read, tiny: str) -> None:
    file = f"title: Tiny\nabout: Cut all rates.\n{tiny}"
    assert written(file, "report=yes").report == Report("Tiny", "Cut all rates.")
    assert written(file, "report.title=A page").report == Report("A page", "Cut all rates.")
    assert written(file, "report.about=All rates.").report == Report("Tiny", "All rates.")


def test_a_folder_does_not_hide_the_bundled_encoder(written: Read, tiny: str, tmp_path: Path) -> None:
    (tmp_path / "minilm").mkdir()
    assert written(tiny).sources["one"].options["encoder"] == "minilm"


def test_set_goes_before_the_file_and_only_takes_what_it_needs(written: Read, tiny: str) -> None:
    study = written(tiny, "encoder=roberta-large", "sweeps.base.runs.0.fusion=[attention, concat]", "fit.lr=1e-3")
    assert study.sources["one"].options["encoder"] == "roberta-large"
    assert study.sweeps["base"].blocks[0]["fusions"] == ("attention", "concat")
    assert {block["lrs"] for sweep in study.sweeps.values() for block in sweep.blocks} == {(1e-3,)}
    assert written(tiny, "sweeps.moved.data-seeds=3", "report.title=A page").report.title == "A page"
    assert written(tiny, "figures=[shots]", "figures=[]").figures == ()
    only = written(tiny, only=("base",))
    assert (list(only.sources), list(only.sweeps), only.comparisons["wide"].sweeps) == (["one"], ["base"], ("base",))
    assert list(written(tiny, only=("moved",)).sweeps) == ["base", "moved"]  # it begins from the other


def test_a_sweeps_own_seeds_take_the_place_of_those_that_all_share(written: Read, tiny: str) -> None:
    study = written(tiny, "sweeps.base.data-seeds=3")
    assert [(block.get("seeds"), block["data_seeds"]) for block in study.sweeps["base"].blocks] == [(None, 3)] * 2
    assert "seeds" not in study.sweeps["base"].block


def test_options_of_methods_go_with_any_task_and_head(written: Read, tiny: str) -> None:
    own = "task: classification, method: full, layer-decay: 0.9, encoder-dropout: 0, accumulate: 2, checkpointing: yes"
    block = written(tiny.replace("fusion: [last, linear]", own)).sweeps["base"].blocks[0]
    assert (block["methods"], block["layer_decay"], block["checkpointing"]) == (("full",), 0.9, True)


# What stands in the place of what, on which line, what is said, and what else is in the message.
MISTAKES: list[tuple[str, str, str, str]] = [
    ("rows: tokens", "rwos: tokens", "line 3: unknown key of a study 'rwos'", "did you mean 'rows'?"),
    ("rows: tokens", "rows: token", "line 3: unknown rows 'token'", "did you mean 'tokens'?"),
    ("one: ${data}/one", "one: ${data}/none", "line 6: no such source", "a path that does not exist"),
    ("one: ${data}/one", "one: s3://bucket/one", "line 6: s3://bucket/one is an address", "an address of s3://"),
    ("one: ${data}/one", "one: ${dat}/one", "line 6: unknown name to stand between", "did you mean 'data'?"),
    ("one: ${data}/one", "one: {rows: cls}", "line 6: source 'one' has no place", "a key `source:`"),
    ('{source: "${data}/two"}', '{sorce: "${data}/two"}', "line 7: unknown key of a source 'sorce'", "'source'?"),
    ("layers: 0,6", "layers:", "line 4: 'layers' has a value of another kind", "nothing"),
    ("layers: 0,6", "mask-seed: 1", "line 6: --mask-seed does nothing", "drop"),
    ("seeds: 2", "seeds: two", "line 8: 'seeds' has a value of another kind", "'two'"),
    ("seeds: 2", "init-from: base", "line 8: unknown option that sweeps can share 'init-from'", "one of"),
    ("store: one", "stoer: one", "line 11: unknown key of a sweep 'stoer'", "did you mean 'store'?"),
    ("store: one", "store: oen", "line 11: unknown source 'oen'", "did you mean 'one'?"),
    ("store: one", "head: tagger", "line 10: this sweep trains on nothing", "`store:`"),
    ("fusion: [last, linear]", "fusion: [last, liner]", "line 13: unknown fusion 'liner'", "did you mean 'linear'?"),
    ("fusion: [last, linear]", "fusion: linear:gama=no", "line 13: unknown option of fusion 'linear'", "'gamma'?"),
    ("fusion: [last, linear]", "lr: 1000", "line 13: lr is out of range", "1000"),
    ("fusion: [last, linear]", "max-steps: 0", "line 13: max-steps is out of range", "1 or more"),
    ("fusion: [last, linear]", "max-steps: [8, many]", "line 13: 'max-steps' has a value of another kind", "'many'"),
    ("fusion: [last, linear]", "schedule: liner", "line 13: unknown schedule 'liner'", "'linear'?"),
    ("fusion: [last, linear]", "task: clasification", "line 13: unknown task 'clasification'", "'classification'?"),
    (
        "fusion: [last, linear]", "layer-decay: 0.9", "line 13: --layer-decay applies only to methods",
        "--method frozen alone",
    ),
    ("label: slots", "head: cfr", "line 14: unknown head 'cfr'", "did you mean 'crf'?"),
    ("label: slots", "head: crf, task: classification", "line 14: unknown head for classification 'crf'", "classifier"),
    ("label: slots", "head: crf, label-smoothing: 0.1", "line 14: head 'crf' cannot use --label-smoothing", "tagger"),
    ('"two:50%"', '"two:500%"', "line 16: no share of a store: 500%", "at most 100"),
    ("init-from: base", "init-from: moved", "line 20: unknown sweep above this one 'moved'", "base"),
    ("freeze: fusion", "freeze: fusoin", "line 21: unknown freeze 'fusoin'", "'fusion'?"),
    ("by: [label, fusion]", "by: [label], metric: macrof1", "line 25: unknown metric 'macrof1'", "'macro_f1'?"),
    ("by: [sweep,", "by: [swep,", "line 24: unknown column of the results 'swep'", "'sweep'?"),
    ("across: fusion", "across: data", "line 24: 'data' is laid across, but not grouped by", "sweep, label"),
    ("sweeps: base", "sweeps: bsae", "line 25: unknown sweep 'bsae'", "'base'?"),
    ("baseline: last", "interval: z", "line 25: unknown interval 'z'", "t"),
    ("baseline: last", "test: t", "line 25: 'test' compares nothing without a baseline", "name one, like `baseline:"),
    (
        "baseline: last", "over: both, interval: bootstrap",
        "line 25: --interval bootstrap can only compare over", "--over both",
    ),
    ("baseline: last", "baseline: fusoin=last", "line 25: unknown column of the results 'fusoin'", "'fusion'?"),
    ("baseline: last", 'baseline: "fusion=last,shto=5"', "line 25: unknown column of the results 'shto'", "'store'?"),
    ("rows: tokens", "figures: [shot]", "line 3: unknown figure 'shot'", "did you mean 'shots'?"),
    ("rows: tokens", "report: maybe", "line 3: unknown choice for the report 'maybe'", "yes"),
    ("rows: tokens", "title: [one, two]", "line 3: 'title' has a value of another kind", "a list of 2"),
    ("rows: tokens", "about: {x: y}", "line 3: 'about' has a value of another kind", "a block of 1"),
    ("rows: tokens", "layers: 3", "line 4: 'layers' is given twice in one block", "each key once"),
    ("rows: tokens", "rows: [tokens", "no study that can be read", "mend that line"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "says", "also"), MISTAKES)
def test_a_mistake_is_one_message_with_its_line(
    old: str, new: str, says: str, also: str, written: Read, tiny: str
) -> None:
    assert tiny.count(old) >= 1
    with pytest.raises(UsageError) as caught:
        written(tiny.replace(old, new, 1))
    assert says in str(caught.value)
    assert also in str(caught.value)
    assert "study.yaml" in caught.value.what


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("encoder", "--set encoder sets nothing"),
        ("sources.one.rows=cls", "--set sources.one.rows=cls: sources.one is no block"),
        ("sweeps.base.runs.7.lr=1", "sweeps.base.runs.7 is no block"),
        ("seeds=3", "--set seeds: unknown key of a study 'seeds'"),
        ("fit.seeds=many", "--set fit.seeds: 'seeds' has a value of another kind"),
        ("title=[", "no value that YAML reads"),
        ("data=[d]", "--set data: 'data' has a value of another kind"),
    ],
)
def test_a_wrong_setting_is_told_by_its_key(setting: str, says: str, written: Read, tiny: str) -> None:
    with pytest.raises(UsageError) as caught:
        written(tiny, setting)
    assert says in str(caught.value)


def test_without_its_folder_of_data_a_study_says_what_to_add(tmp_path: Path, tiny: str) -> None:
    (tmp_path / "study.yaml").write_text(tiny)
    with pytest.raises(UsageError, match="add --set data=FOLDER") as caught:
        read_study(tmp_path / "study.yaml")
    assert "study.yaml, line 6" in caught.value.what


def test_the_folder_of_data_may_be_that_of_the_bundled_corpus(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text('data: ${bundled}\nsources: {desk: "${data}/de"}\n')
    assert read_study(tmp_path / "study.yaml").sources["desk"].options["source"] == str(travel_desk("de"))


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("[d]", "line 1: 'data' has a value of another kind"),
        ("${bundeld}", "line 1: unknown name to stand between"),
        ("${data}/d", "line 1: the folder of data sets is not given"),
    ],
)
def test_a_wrong_folder_of_data_is_told_by_its_line(folder: str, says: str, tmp_path: Path, tiny: str) -> None:
    (tmp_path / "study.yaml").write_text(f"data: {folder}{tiny}")
    with pytest.raises(UsageError) as caught:
        read_study(tmp_path / "study.yaml")
    assert says in caught.value.what


CLUSTER = """
cluster:
  kind: slurm
  workers: 3
  walltime: "01:00:00"
  public: true
  environment: [module load cuda]
"""


def test_a_study_may_say_which_cluster_does_its_work(written: Read, tiny: str, tmp_path: Path) -> None:
    assert given_cluster(None, None, "auto", None, written(tiny)) is None
    study = written(tiny + CLUSTER, "cluster.workers=4")
    found = given_cluster(None, None, "auto", None, study)
    assert found == ClusterSettings(
        kind="slurm", workers=4, walltime="01:00:00", public=True, environment=("module load cuda",)
    )
    flags = given_cluster("local", None, "cpu", 2, study)
    assert flags is not None
    assert (flags.kind, flags.workers, flags.walltime, flags.gpus) == ("local", 2, "01:00:00", 0)
    (named := tmp_path / "cluster.yaml").write_text("workers: 7")
    assert given_cluster(None, named, "auto", None, study) == ClusterSettings(workers=7)


@pytest.mark.parametrize(
    ("more", "settings", "says"),
    [
        (CLUSTER, ["cluster.partitoin=long"], "--set cluster.partitoin: unknown cluster setting 'partitoin'"),
        (CLUSTER.replace("3", "0"), [], "line 29: workers is out of range"),
        ("cluster: slurm\n", [], "line 26: 'cluster' is no block"),
    ],
)
def test_a_wrong_setting_of_the_cluster_is_told_by_its_place(
    more: str, settings: list[str], says: str, written: Read, tiny: str
) -> None:
    with pytest.raises(UsageError) as caught:
        given_cluster(None, None, "auto", None, written(tiny + more, *settings))
    assert says in caught.value.what


def test_a_relative_folder_of_data_lies_beside_the_file_or_where_one_is(
    data: Path, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "corpora" / "of-mine").mkdir(parents=True)
    for name in ("one", "two"):
        (tmp_path / "corpora" / "of-mine" / name).symlink_to(data / name)
    file = tmp_path / "studies" / "study.yaml"
    monkeypatch.chdir(tmp_path)
    wanted = [tmp_path / "corpora" / "of-mine" / name for name in ("one", "two")]
    for text, settings in ((tiny + "data: ../corpora/of-mine\n", []), (tiny, ["data=corpora/of-mine"])):
        file.write_text(text)
        for place in (file, file.relative_to(tmp_path)):
            found = [source.options["source"] for source in read_study(place, settings).sources.values()]
            assert [Path(each).resolve() for each in found] == [each.resolve() for each in wanted]


@pytest.mark.parametrize("baseline", ["linear:gamma=no,norm=token", "fusion=linear:gamma=no,norm=token,lr=0.002"])
def test_a_baseline_may_be_a_fusion_with_several_options(baseline: str, written: Read, tiny: str) -> None:
    study = written(tiny.replace("baseline: last", f'baseline: "{baseline}"'))
    assert study.comparisons["against"].baseline == baseline


@pytest.mark.parametrize(("given", "wanted"), [("yes", True), ("Yes", True), ("True", True), ("No", False)])
def test_a_report_is_asked_for_in_the_words_of_yaml(given: str, wanted: bool, written: Read, tiny: str) -> None:
    assert (written(f"{tiny}report: {given}\n").report is not None) == wanted


def test_a_comparison_of_no_sweeps_is_refused(written: Read, tiny: str) -> None:
    with pytest.raises(UsageError, match="a comparison of no sweeps"):
        written(tiny.replace("against: {sweeps: base,", "against: {sweeps: [],"))
