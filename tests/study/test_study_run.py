"""A whole study over the bundled corpus: from sources to tables, again, killed, changed, foreseen."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fusionkit.errors import StoreError
from fusionkit.options.comparison import Comparison
from fusionkit.report.content import provenance_of
from fusionkit.report.predictions import all_predictions
from fusionkit.report.report_data import read_report_data
from fusionkit.runs.folder import RunsFolder
from fusionkit.runs.record import digest_of_record
from fusionkit.specs import RunSpec
from fusionkit.store import open_store
from fusionkit.study.fit_step import all_digests, runs_content
from fusionkit.study.folder import Ledger, StudyFolder
from fusionkit.study.forecast import SourceStore, sample_fit
from fusionkit.study.report_steps import command_of, figures_step, report_step
from fusionkit.study.run import run_study
from fusionkit.study.steps import Step
from fusionkit.study.study import Report

Command = Callable[..., Any]
Ran = Any
STEPS = ["encode one", "encode two", "fit base", "fit moved", "table wide", "table against"]


def made(result: Any) -> list[str]:
    """The steps that a run with --json did."""
    assert result.code == 0, result.err
    return [step["step"] for step in json.loads(result.out) if step["made"]]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and the time of its last change, but the ledger."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("study.json", ".study.lock")]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def copy(ran: Ran, tmp_path: Path) -> Path:
    """The finished study's folder, to change."""
    return Path(shutil.copytree(ran.work, tmp_path / "work"))


def test_a_study_goes_from_sources_to_tables(ran: Ran) -> None:
    assert made(ran.first) == STEPS
    wide = pd.read_csv(ran.work / "tables" / "wide.csv")
    assert {tuple(row) for row in wide[["sweep", "label", "evaluated", "fusion", "runs"]].to_numpy().tolist()} == {
        ("base", "intent", "one", "last", 2), ("base", "intent", "one", "linear", 2),
        ("base", "slots", "one", "linear", 2),
        ("moved", "intent", "two", "linear", 2), ("moved", "intent", "one", "linear", 2),
    }  # fmt: skip
    scores: dict[str, list[float]] = {"last": [], "linear": []}
    for path in (ran.work / "runs" / "base").glob("*/run.json"):
        record = json.loads(path.read_text())
        if record["spec"]["label"] == "intent":
            scores[record["spec"]["fusion"]].append(record["score"])
    found = wide[(wide["sweep"] == "base") & (wide["label"] == "intent")].set_index("fusion")["mean"]
    assert found.to_dict() == pytest.approx({name: sum(each) / 2 for name, each in scores.items()})
    against = (ran.work / "tables" / "against.md").read_text()
    assert "| intent | last | test | accuracy |" in against
    assert "paired differences to fusion=last" in against
    header, _, *lines, gap, speaks, _, unit = (ran.work / "tables" / "wide.md").read_text().splitlines()
    assert gap == ""
    assert unit.startswith("scores in percent, perplexities as they are; the CSV has fractions; bold: the best mean")
    assert speaks.startswith(
        "intervals and tests generalise to other seeds and other test examples; 20 test examples; standard"
    )
    assert header == "| sweep | label | evaluated | scored on | metric | last | linear |"
    assert [line.split(" | ")[:3] for line in lines] == [
        ["| base", "intent", "one"], ["| base", "slots", "one"],
        ["| moved", "intent", "two"], ["| moved", "intent", "one"],
    ]  # fmt: skip
    assert "\\begin{tabular}" in (ran.work / "tables" / "wide.tex").read_text()


def test_its_folder_says_what_was_made_from_what(ran: Ran, fusionkit: Command) -> None:
    ledger = json.loads((ran.work / "study.json").read_text())
    assert list(ledger["steps"]) == STEPS
    assert ledger["command"].startswith("fusionkit run ")
    assert ledger["study"]["sweeps"]["base"]["store"] == "one"
    assert all(step["seconds"] >= 0 and step["command"].startswith("fusionkit ") for step in ledger["steps"].values())
    assert ledger["steps"]["table wide"]["from"]["runs"] == {
        name: ledger["steps"][f"fit {name}"]["made"][f"runs/{name}"] for name in ("base", "moved")
    }
    assert (ledger["steps"]["fit base"]["from"]["runs"], ledger["steps"]["fit base"]["failed"]) == (6, 0)
    # Each command does the same from a shell: here, nothing, for all of it is there.
    for name, runs in (("base", 6), ("moved", 2)):
        done = fusionkit(*ledger["steps"][f"fit {name}"]["command"].split()[1:], "--json")
        assert len(json.loads(done.out)) == runs
        assert f"\n{runs} of {runs} runs there already" in done.err
    done = fusionkit(*ledger["steps"]["encode two"]["command"].split()[1:])
    assert "complete already" in done.out
    done = fusionkit(*shlex.split(ledger["steps"]["table against"]["command"])[1:])
    assert (done.code, "last" in done.out) == (0, True)


def test_run_again_it_does_nothing(ran: Ran) -> None:
    before = contents(ran.work)
    assert made(ran.command("--json")) == []
    assert contents(ran.work) == before


def test_what_is_lost_or_changed_is_made_again_and_what_follows_from_it(ran: Ran, copy: Path) -> None:
    table = copy / "tables" / "wide.md"
    table.write_text("spoilt")
    os.utime(table, (2e9, 2e9))  # newer than its runs, by its time
    assert made(ran.command("--json", work=copy)) == ["table wide"]
    assert table.read_text() == (ran.work / "tables" / "wide.md").read_text()
    more = ("--set", "sweeps.moved.epochs=2", "--set", "comparisons.against.metric=macro_f1", "--json")
    changed = ran.command(*more, work=copy)
    assert made(changed) == ["fit moved", "table wide", "table against"]
    assert "holds 2 runs that the study no longer asks for" in changed.err
    assert pd.read_csv(copy / "tables" / "against.csv")["metric"].tolist()[:2] == ["macro_f1"] * 2


def test_a_sweep_starts_only_from_runs_that_the_study_asks_for(ran: Ran, copy: Path) -> None:
    """The folder of the sweep above it also holds runs of another number of epochs."""
    assert made(ran.command("--set", "sweeps.base.epochs=2", "--workers", 1, "--json", work=copy)) == STEPS[2:]
    base, moved = (RunsFolder(copy / "runs" / name).records() for name in ("base", "moved"))
    asked = {digest_of_record(each) for each in base if each["spec"]["epochs"] == 2}
    assert (len(base), len(asked), len(moved)) == (12, 6, 4)
    assert sum(each["spec"]["init_from"] in asked for each in moved) == 2


DRAWING = """
encoder: minilm
rows: tokens
layers: 0,6
sources: {one: "${data}/one"}
fit: {label: intent, pool: mean, fusion: last, epochs: 1, floor: none}
sweeps:
  first: {store: one, shots: [1, 2]}
  again: {store: one, draw-from: first}
"""


def test_a_sweep_draws_only_from_runs_that_the_study_asks_for(ran: Ran, fusionkit: Command, tmp_path: Path) -> None:
    """The folder of the sweep above it also holds runs of another number of shots, then runs of another draw."""
    file, work = tmp_path / "drawing.yaml", tmp_path / "work"
    file.write_text(DRAWING)
    shutil.copytree(ran.work / "stores", work / "stores")
    for setting, runs in (("shots=[1, 2]", 2), ("shots=1", 1), ("draw=nested", 2)):
        given = ("--set", f"data={ran.data}", "--set", f"sweeps.first.{setting}")
        done = fusionkit("run", file, *given, "--out", work, "--workers", 1)
        assert done.code == 0, done.err
        assert json.loads((work / "study.json").read_text())["steps"]["fit again"]["from"]["runs"] == runs
    first, again = (RunsFolder(work / "runs" / name).records() for name in ("first", "again"))
    drawn = [each["draw"] for each in first if each["spec"]["draw"] == "nested"]
    assert len(drawn) == sum(each["draw"] in drawn for each in again) == 2


def test_the_command_of_a_table_has_no_column_that_results_has_not(tmp_path: Path) -> None:
    comparison = Comparison(name="main", sweeps=("base",), by=("sweep", "fusion"), ranks=True)
    words = shlex.split(command_of(comparison, StudyFolder(tmp_path)))
    assert words == ["fusionkit", "results", str(tmp_path / "runs" / "base"), "--by", "fusion", "--ranks"]


def test_a_store_of_something_else_is_refused(ran: Ran, copy: Path) -> None:
    done = ran.command("--set", "layers=0,3", work=copy)
    assert done.code == 2
    assert "layers" in done.err
    assert "choose another --out, or remove that store" in done.err
    assert ran.command("--json", work=copy).code == 0


def test_a_wrong_column_is_refused_before_any_work(ran: Ran, tmp_path: Path) -> None:
    done = ran.command("--set", "sweeps.moved.label=intnet", work=tmp_path / "w")
    assert done.code == 2
    assert "line 15, sweep moved: unknown column of source 'one' 'intnet'" in done.err
    assert "did you mean 'intent'?" in done.err
    assert not (tmp_path / "w").exists()
    (tmp_path / "mine").mkdir()
    assert ran.command("--set", "sweeps.moved.label=intnet", work=tmp_path / "mine").code == 2
    assert list((tmp_path / "mine").iterdir()) == []  # not ours to remove


def test_a_folder_of_others_is_not_touched(ran: Ran, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    done = ran.command(work=tmp_path)
    assert (done.code, [path.name for path in tmp_path.iterdir()]) == (2, ["thesis.tex"])
    assert "is no folder of a study" in done.err
    (tmp_path / "study.json").write_text('{"name": "mine"}')  # another program's
    done = ran.command(work=tmp_path)
    assert (done.code, (tmp_path / "study.json").read_text()) == (2, '{"name": "mine"}')
    assert "a study.json of something else" in done.err
    done = ran.command(work=tmp_path / "thesis.tex")
    assert (done.code, (tmp_path / "thesis.tex").read_text()) == (2, "mine")
    assert "received: a file" in done.err


FLOORS = ("--dry-run", "--json", "--set", "fit.floor=majority")


def test_a_ledger_of_other_values_is_damaged(tmp_path: Path) -> None:
    broken: list[Any] = [[], {"encode sst2": None}]
    for steps in broken:
        (tmp_path / "study.json").write_text(json.dumps({"steps": steps}))
        with pytest.raises(StoreError, match=r"study\.json is damaged"):
            Ledger(StudyFolder(tmp_path))


def test_a_dry_run_says_what_is_there_and_what_is_to_do(ran: Ran, copy: Path, tmp_path: Path) -> None:
    before = contents(copy)
    plan = json.loads(ran.command("--dry-run", "--json", work=copy).out)
    assert [(step["step"], step["state"]) for step in plan] == [(name, "there") for name in STEPS]
    shutil.rmtree(copy / "stores" / "two.store")
    shutil.rmtree(copy / "runs" / "moved")
    before = contents(copy)
    done = ran.command("--dry-run", "--json", work=copy)
    plan = {step["step"]: step for step in json.loads(done.out)}
    assert {name: step["state"] for name, step in plan.items()} == {
        name: "there" if name in ("encode one", "fit base") else "to do" for name in STEPS
    }
    store = sum(path.stat().st_size for path in (ran.work / "stores" / "two.store").rglob("*") if path.is_file())
    assert plan["encode two"]["bytes"] == pytest.approx(store, rel=0.1)
    assert plan["encode two"]["seconds"] > 0
    assert plan["fit moved"]["seconds"] > 0
    assert plan["fit moved"]["told"] == "2 runs, measured over a sample"
    assert contents(copy) == before
    floors = {step["step"]: step for step in json.loads(ran.command(*FLOORS, work=copy).out)}
    assert floors["fit moved"]["told"] == "4 runs, measured over a sample"
    assert (floors["fit base"]["state"], floors["fit base"]["told"]) == ("begun", "only floors are left")
    lines = ran.command("--dry-run", work=ran.work).out.splitlines()
    assert [line.split()[:3] for line in lines[2:4]] == [["encode", name, "there"] for name in ("one", "two")]


def test_a_run_that_is_scored_on_two_stores_is_looked_at_over_each(ran: Ran) -> None:
    study = read_report_data([ran.work / "runs" / "moved"], [ran.work / "stores"])
    stores = provenance_of(study, None, None, None, Path("page.html"))["stores"]
    assert {store["data"] for store in stores} == {"one", "two"}
    assert all(f"fusionkit encode {store['data']} " in store["encode"] for store in stores)
    found = {run.task.split(" → ")[-1]: run for run in all_predictions(study).runs}
    assert set(found) == {"one", "two"}
    for name, run in found.items():
        frame = open_store(ran.work / "stores" / f"{name}.store")["test"].examples
        assert run.gold == frame["intent"].tolist()
        right = [gold == said for gold, said in zip(run.gold, run.predicted, strict=True)]
        assert run.scored["score"] == pytest.approx(sum(right) / len(right))


def test_a_dry_run_knows_the_columns_of_a_conll_file(fusionkit: Command, tmp_path: Path) -> None:
    lines = "".join(f"1 go O\n2 to O\n3 {town} B-town\n\n" for town in ("Oslo", "Rome", "Bonn", "Bern") * 5)
    for split in ("train", "validation", "test"):
        (tmp_path / "source").mkdir(exist_ok=True)
        (tmp_path / "source" / f"{split}.conll").write_text(lines)
    source = f'{{source: {tmp_path}/source, columns: "index,word,tag"}}'
    (tmp_path / "s.yaml").write_text(f"sources:\n  a: {source}\nsweeps:\n  b: {{store: a, epochs: 1}}\n")
    done = fusionkit("run", tmp_path / "s.yaml", "--out", tmp_path / "work", "--dry-run", "--json")
    assert done.code == 0, done.err
    assert [step["state"] for step in json.loads(done.out)] == ["to do", "to do"]


def test_a_dry_run_over_a_sample_scores_a_share_of_the_whole_validation(
    ran: Ran, written: Callable[..., Any], tiny: str
) -> None:
    study, stores = written(tiny, "fit.validate-on=10%"), ran.work / "stores"
    whole = {
        name: SourceStore(stores / f"{name}.store", {"train": 4000, "validation": count, "test": 20}, 0, 0, 0.0)
        for name, count in (("one", 300), ("two", 500))
    }
    for name, watched in (("base", 30), ("moved", 50)):
        fitting, cost = sample_fit(study.sweeps[name], StudyFolder(ran.work), whole)
        assert {cost.watched(spec) for spec in fitting.sweep.specs} == {watched}


def test_a_dry_run_samples_a_rare_class(fusionkit: Command, tmp_path: Path) -> None:
    rare = np.random.default_rng(0).permutation(200)[-1]  # the last of those that a sample would take
    (tmp_path / "source").mkdir()
    for split, count in (("train", 200), ("validation", 8), ("test", 8)):
        rows = ({"text": f"letter {k}", "label": "spam" if k == rare else "ham"} for k in range(count))
        (tmp_path / "source" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source, sweep = f"{{source: {tmp_path}/source, rows: mean}}", "{store: a, label: label, fusion: last, epochs: 1}"
    (tmp_path / "s.yaml").write_text(f"sources:\n  a: {source}\nsweeps:\n  b: {sweep}\n")
    done = fusionkit("run", tmp_path / "s.yaml", "--out", tmp_path / "work", "--dry-run", "--json")
    assert done.code == 0, done.err


def test_a_numbered_device_is_refused_beside_a_cluster(ran: Ran, copy: Path) -> None:
    done = ran.command("--cluster", "local", "--device", "cuda:1", work=copy)
    assert done.code == 2
    assert "the workers of a cluster have no device 'cuda:1'" in done.err


def test_figures_and_a_page_follow_the_runs(ran: Ran, copy: Path, fusionkit: Command, tmp_path: Path) -> None:
    more = ("--set", "figures=[loss-by-step, shots]", "--set", "report=yes", "--json")
    done = ran.command(*more, work=copy)
    assert made(done) == ["figures", "report"]
    assert "figure shots is left out" in done.err
    assert {path.name for path in (copy / "figures").glob("*.[sc][vs][gv]")} == {"loss-by-step.svg", "loss-by-step.csv"}
    assert "</html>" in (copy / "report.html").read_text(encoding="utf-8")
    assert made(ran.command(*more, work=copy)) == []
    # From a shell the same page, look inside and all, and all figures.
    steps = json.loads((copy / "study.json").read_text())["steps"]
    for name in ("figures", "report"):
        words = [word.replace(str(copy / name), str(tmp_path / name)) for word in shlex.split(steps[name]["command"])]
        assert (again := fusionkit(*words[1:])).code == 0, again.err
        assert "left out" not in again.err
    assert (tmp_path / "figures" / "loss-by-step.svg").is_file()
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    (copy / "figures" / "loss-by-step.svg").unlink()
    assert made(ran.command(*more, work=copy)) == ["figures"]


def test_killed_in_the_middle_of_a_sweep_it_goes_on(ran: Ran, copy: Path) -> None:
    shutil.rmtree(copy / "runs")
    more = ["--set", f"data={ran.data}", "--set", "fit.epochs=3", "--set", "sweeps.base.data-seeds=4"]
    more += ["--out", str(copy), "--workers", "1", "--json"]
    child = subprocess.Popen(
        [sys.executable, "-m", "fusionkit", "run", str(ran.file), *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    kept: list[Path] = []
    while not kept and child.poll() is None:
        kept = list((copy / "runs").glob("base/*/run.json"))
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = {path: path.read_bytes() for path in (copy / "runs").glob("base/*/run.json")}
    assert 0 < len(before) < 12
    done = ran.command(*more[2:6], "--workers", "1", "--json", work=copy)
    assert made(done) == STEPS[2:]
    assert {path: path.read_bytes() for path in before} == before
    assert len(list((copy / "runs").glob("base/*/run.json"))) == 12
    assert made(ran.command(*more[2:6], "--json", work=copy)) == []


def test_the_schema_is_printed_without_a_study(fusionkit: Command) -> None:
    done = fusionkit("run", "--schema")
    assert json.loads(done.out)["title"] == "A study of fusionkit"


def test_what_changes_while_a_step_reads_it_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = [0]

    def make() -> dict[str, str]:
        read.append(len(read)) if len(read) < 2 else None  # somebody saves the source once
        return {"out": "made"}

    step = Step("encode one", "", lambda: {"content": read[-1]}, lambda known: {"out": "made"}, make)
    prepared = lambda *given: SimpleNamespace(ledger=Ledger(StudyFolder(tmp_path)), steps=[step])  # noqa: E731
    monkeypatch.setattr("fusionkit.study.run.prepare", prepared)
    study: Any = SimpleNamespace(written=SimpleNamespace(value={}))
    nothing: Any = None
    done = [next(run_study(study, StudyFolder(tmp_path), nothing, "")).made for _ in range(3)]
    assert done == [True, True, False]


def test_runs_that_are_there_are_logged_when_asked_for(ran: Ran, copy: Path) -> None:
    done = ran.command("--log-to", "tensorboard", "--json", work=copy)
    assert made(done) == ["fit base", "fit moved"]
    assert "6 runs logged now" in done.err
    assert (copy / "runs" / "base" / "logs" / "tensorboard").is_dir()


def test_answers_that_are_added_to_runs_make_tables_anew(copy: Path) -> None:
    runs = copy / "runs" / "base"
    before = runs_content(runs, all_digests(runs))
    kept = next(runs.glob("*/answers.safetensors"))
    kept.rename(kept.with_suffix(".away"))
    assert runs_content(runs, all_digests(runs)) != before
    kept.with_suffix(".away").rename(kept)
    assert runs_content(runs, all_digests(runs)) == before


def test_figures_and_a_page_of_failed_runs_alone_are_left_out_with_a_message(tmp_path: Path) -> None:
    work, said = StudyFolder(tmp_path), list[str]()
    spec = RunSpec(store="s", task="tagging", label="tags", fusion="last", head="tagger")
    failed = {"status": "failed", "data": "d", "evaluated": "d", "encoder": "e", "rows": "words", "sides": 1}
    RunsFolder(work.runs("base")).write(spec, {"spec": spec.to_dict(), **failed}, {})
    study: Any = SimpleNamespace(sources={}, sweeps={"base": None, "moved": None}, figures=None)  # moved was left out
    commands: Any = SimpleNamespace(say=said.append)
    wanted = ["all figures are left out: no run has finished", "the report is left out: no run has finished"]
    for _ in range(2):
        for step in (figures_step(study, work, commands), report_step(Report("A page"), study, work, commands)):
            assert step.make() == {}
        assert said == wanted
        said.clear()
        shutil.rmtree(work.runs("base"), ignore_errors=True)


def test_a_sweep_of_failed_runs_alone_fails_the_study_after_its_other_steps(ran: Ran, copy: Path) -> None:
    wild = ("lr=99", "weight-decay=90", "epochs=40")
    lost = [part for each in wild for part in ("--set", f"sweeps.moved.{each}")]
    table = {"sweeps": "moved", "by": "fusion", "metric": "macro_f1", "pareto": "seconds_alone"}
    lost += [part for name, value in table.items() for part in ("--set", f"comparisons.lost.{name}={value}")]
    for _ in range(2):  # trained, and read back
        done = ran.command(*lost, "--json", work=copy)
        assert done.code == 1
        assert "no run of sweep moved finished: the study's other results are there" in done.err
        assert "received: the loss of linear + classifier is no longer finite" in done.err
        assert "--retry-failed" in done.err
    assert [step["step"] for step in json.loads(done.out)] == [*STEPS, "table lost"]
    assert "no marks: no run tells its" in (copy / "tables" / "lost.md").read_text()


def test_a_sweep_that_starts_from_failed_runs_alone_is_left_out(ran: Ran, copy: Path) -> None:
    wild = [part for each in ("lr=99", "weight-decay=90", "epochs=40") for part in ("--set", f"sweeps.base.{each}")]
    tables = [("--set", f"comparisons.{name}.by=fusion", "--set", f"comparisons.{name}.{value}")
              for name, value in (("started", "sweeps=moved"), ("counted", "metric=f1"))]  # fmt: skip
    done = ran.command(*wild, *(part for each in tables for part in each), "--json", work=copy)
    assert done.code == 1
    assert "no run of sweep base finished: the study's other results are there" in done.err
    lost = "no run of sweep base has finished, so nothing can be taken from one"
    assert "fit moved is left out: " in done.err
    assert lost in done.err
    assert "table started is left out: the sweeps of comparison started have no runs" in done.err
    assert [step["step"] for step in json.loads(done.out)] == [*STEPS[:3], *STEPS[4:], "table counted"]
    plan = {step["step"]: step for step in json.loads(ran.command(*wild, "--dry-run", "--json", work=copy).out)}
    assert lost in plan["fit moved"]["told"]
    pearson = [("--set", f"comparisons.counted.{each}") for each in ("by=fusion", "metric=pearson")]
    done = ran.command(*(part for each in pearson for part in each), work=copy)
    assert done.code == 0
    assert "no finished run of comparison counted has the metric pearson; they have accuracy" in done.err
