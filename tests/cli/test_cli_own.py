"""A fusion and a head of the user's own, from flags to exported heads, with what is said where their code is not."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fusionkit import load, registry
from fusionkit.errors import FusionkitWarning, UsageError
from fusionkit.exported import FusedHead

Command = Callable[..., Any]
PAGE = (Path(__file__).parent.parent.parent / "docs" / "your-own.md").read_text(encoding="utf-8")
[MIX, _, HEADS, _] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FUSION, HEAD = "clilab.mix:Gated", "clilab.heads:Heated"
CHOICES = ("--label", "slots", "--epochs", 1)


@pytest.fixture(scope="module", autouse=True)
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder, with the modules of the page."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "clilab").mkdir()
    (folder / "clilab" / "mix.py").write_text(MIX)
    (folder / "clilab" / "heads.py").write_text(HEADS)
    before = list(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder
    sys.path[:] = before


@pytest.fixture(scope="module")
def runs(lab: Path, store: Path, fusionkit: Command) -> Path:
    """One run of each, trained by two processes from a sweep file."""
    (lab / "sweep.yaml").write_text(f"fusion: ['{FUSION},halve=yes', {FUSION}]\nhead: {HEAD}\nseeds: 2\n")
    done = fusionkit("fit", store, "--sweep", lab / "sweep.yaml", *CHOICES, "--workers", 2, "--out", lab / "runs")
    assert done.code == 0, done.err
    assert "2 processes share" in done.err
    return lab / "runs"


@pytest.fixture(scope="module")
def exported(runs: Path, lab: Path, fusionkit: Command) -> Path:
    done = fusionkit("export", sorted(runs.glob("*/run.json"))[0].parent, "--to", lab / "head")
    assert done.code == 0, done.err
    return lab / "head"


@pytest.fixture
def edited(lab: Path) -> Iterator[None]:
    """The file of the head is another one, and Python has imported that."""
    path = lab / "clilab" / "heads.py"
    before = path.read_text()
    path.write_text(before + "# more\n")
    sys.modules.pop("clilab.heads")
    registry.load.cache_clear()
    yield
    path.write_text(before)
    sys.modules.pop("clilab.heads")
    registry.load.cache_clear()


@pytest.fixture
def trap(lab: Path, tmp_path: Path) -> Iterator[None]:
    """A module that makes a file if it is imported, which must not happen."""
    sprung = tmp_path / "sprung"
    (lab / "trap.py").write_text(f"import pathlib\npathlib.Path({str(sprung)!r}).touch()\n")
    yield
    assert not sprung.exists()
    assert "trap" not in sys.modules


@pytest.mark.soak("products")
def test_records_results_and_report_have_them(runs: Path, lab: Path, fusionkit: Command) -> None:
    rows = json.loads(fusionkit("results", runs, "--by", "fusion", "--json").out)
    assert sorted(row["fusion"] for row in rows) == [FUSION, f"{FUSION}:halve=yes"]
    for path in runs.glob("*/run.json"):
        sources = json.loads(path.read_text(encoding="utf-8"))["sources"]
        assert [source["name"] for source in sources] == [FUSION, HEAD]
        assert all(len(source["sha256"]) == 64 for source in sources)
    done = fusionkit("report", runs, "--out", lab / "report.html")
    assert done.code == 0, done.err
    assert f"{FUSION}:halve=yes" in (lab / "report.html").read_text(encoding="utf-8")


def test_predict_and_another_start_take_them(runs: Path, store: Path, tmp_path: Path, fusionkit: Command) -> None:
    done = fusionkit("predict", sorted(runs.glob("*/run.json"))[0].parent, "a room in Oslo", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["heads"]["slots"]["words"] == ["a", "room", "in", "Oslo"]
    begun = fusionkit(
        "fit", store, *CHOICES, "--fusion", FUSION, "--head", HEAD, "--init-from", runs, "--out", tmp_path / "runs"
    )
    assert begun.code == 0, begun.err


def test_one_of_several_tasks_takes_them(store: Path, tmp_path: Path, fusionkit: Command) -> None:
    given = [f"--{option}" for option in ("task", "task", "head")]
    named = zip(given, ("intent=classification", "slots=tagging", f"slots={HEAD}"), strict=True)
    chosen = [word for pair in named for word in pair]
    done = fusionkit("fit", store, *chosen, "--fusion", FUSION, "--epochs", 1, "--out", tmp_path / "runs", "--json")
    assert done.code == 0, done.err
    [run] = (tmp_path / "runs").glob("*/run.json")
    record = json.loads(run.read_text(encoding="utf-8"))
    assert (record["spec"]["task"], record["spec"]["head"]) == ("joint", f"classifier+{HEAD}")
    assert [source["name"] for source in record["sources"]] == [FUSION, HEAD]
    told = fusionkit("predict", run.parent, "a room in Oslo", "--json")
    assert list(json.loads(told.out)["heads"]) == ["intent", "slots"]


@pytest.mark.soak("products")
def test_a_cluster_s_workers_import_them(store: Path, tmp_path: Path, fusionkit: Command) -> None:
    done = fusionkit(
        "fit", store, *CHOICES, "--fusion", FUSION, "--cluster", "local", "--workers", 1, "--out", tmp_path / "runs"
    )
    assert done.code == 0, done.err


def test_changed_code_is_told_of_wherever_a_run_is_loaded(
    runs: Path, store: Path, lab: Path, fusionkit: Command, edited: None
) -> None:
    folder = sorted(runs.glob("*/run.json"))[0].parent
    done = fusionkit("predict", folder, "a room in Oslo")
    assert done.code == 0
    assert done.err.count(f"fusionkit: {HEAD} has changed since: clilab.heads was sha256") == 1
    with pytest.warns(FusionkitWarning, match="has changed since"):
        load(folder, device="cpu")
    again = fusionkit("fit", store, "--sweep", lab / "sweep.yaml", *CHOICES, "--out", runs)
    assert again.code == 0
    assert "4 of 4 runs there already" in again.err
    assert again.err.count(f"{HEAD} has changed since") == 1


def test_an_exported_head_runs_no_code_that_is_not_trusted(exported: Path, fusionkit: Command) -> None:
    done = fusionkit("predict", exported, "a room in Oslo")
    assert done.code == 2
    assert "wants to run Python code of clilab.mix and clilab.heads" in done.err
    assert "--trust-module clilab.mix --trust-module clilab.heads" in done.err
    assert fusionkit("predict", exported, "--trust-module", "clilab", "a room in Oslo").code == 0
    assert fusionkit("predict", exported, "--trust-module", "clilab.mix", "a room in Oslo").code == 2
    assert fusionkit("predict", exported, "--trust-module", "cli", "a room in Oslo").code == 2
    for use in (
        lambda **trust: load(exported, device="cpu", **trust),
        lambda **t: FusedHead.from_pretrained(exported, **t),
    ):
        with pytest.raises(UsageError, match="wants to run Python code"):
            use()
        assert use(trust_modules=["clilab"])
    card = (exported / "README.md").read_text(encoding="utf-8")
    assert "## Code" in card


def test_an_exported_head_that_names_any_other_module_does_not_import_it(
    exported: Path, trap: None, tmp_path: Path
) -> None:
    head = shutil.copytree(exported, tmp_path / "0123456789abcdef")
    sound = json.loads((head / "config.json").read_text(encoding="utf-8"))
    for fusion, name, method in (
        ("trap:It", "tagger", "frozen"), ("last", "trap:It", "frozen"), ("last", "tagger+trap:It", "frozen"),
        ("last", "tagger", "trap:It"), ("last", "tagger", "trap:It:64,share=no"),
    ):  # fmt: skip
        spec = {**sound["spec"], "fusion": fusion, "head": name, "method": method}
        (head / "config.json").write_text(json.dumps({**sound, "spec": spec}))
        with pytest.raises(UsageError, match="wants to run Python code of trap"):
            load(head, device="cpu")
    # The record of a run beside the config makes it no run, whether the head or the folder around it is named.
    spec = {**sound["spec"], "fusion": "trap:It"}
    (head / "run.json").write_text(json.dumps({**sound, "spec": spec, "status": "finished"}))
    (head / "config.json").write_text(json.dumps(sound))
    for place in (head, tmp_path):
        with pytest.raises(UsageError, match="wants to run Python code of clilab"):
            load(place, device="cpu")


def test_what_reads_records_alone_imports_nothing(runs: Path, trap: None, tmp_path: Path, fusionkit: Command) -> None:
    folder = tmp_path / "foreign" / "0123456789abcdef"
    folder.mkdir(parents=True)
    record = json.loads(min(runs.glob("*/run.json")).read_text(encoding="utf-8"))
    record["spec"] |= {"fusion": "trap:It", "head": "trap:It"}
    (folder / "run.json").write_text(json.dumps(record))
    for command in ("results", "status", "info"):
        done = fusionkit(command, folder.parent, "--json")
        assert done.code == 0, done.err


def test_a_module_that_is_nowhere_is_refused_before_a_store_is_opened(tmp_path: Path, fusionkit: Command) -> None:
    for option, name in (
        ("--fusion", "nolab.mix:Gated"),
        ("--head", "classifier+nolab.heads:Heated"),
        ("--head", "slots=nolab.heads:Heated"),
    ):
        done = fusionkit("fit", tmp_path / "no.store", option, name, "--out", tmp_path / "runs")
        assert done.code == 2
        assert "cannot be imported: there is no module 'nolab'" in done.err
        assert "remedy:" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_study_takes_them(lab: Path, tmp_path: Path, corpus: Path, fusionkit: Command) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        f"sources: {{de: {{source: {corpus}, layers: '0,6', rows: words}}}}\n"
        f"sweeps: {{own: {{store: de, label: slots, fusion: '{FUSION}:halve=yes', head: '{HEAD}', epochs: 1}}}}\n"
        "report: no\n"
    )
    done = fusionkit("run", study, "--out", tmp_path / "work")
    assert done.code == 0, done.err
    study.write_text(study.read_text().replace(FUSION, "nolab.mix:Gated"))
    refused = fusionkit("run", study, "--out", tmp_path / "other")
    assert refused.code == 2
    assert "there is no module 'nolab'" in refused.err
    assert not (tmp_path / "other").exists()
