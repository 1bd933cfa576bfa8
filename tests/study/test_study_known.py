"""Runs that are known from files of records: a study takes them as done, and nothing takes them for trained ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.errors import UsageError
from fusionkit.runs.ablations import ABLATION, Ablation, ablation_from, write_ablation
from fusionkit.runs.folder import RunsFolder
from fusionkit.runs.record import digest_of_record
from fusionkit.runs.records_file import known_runs, read_records, write_records
from fusionkit.runs.tables.paper_tables import UNITS_NOTE
from fusionkit.statistics.answer_bytes import to_text
from fusionkit.store import open_store

Command = Callable[..., Any]
Ran = Any


@pytest.fixture
def file(ran: Ran, tmp_path: Path) -> Path:
    """The records of the finished study."""
    folders = {sweep: RunsFolder(ran.work / "runs" / sweep) for sweep in ("base", "moved")}
    records = [
        {"sweep": sweep, **record, "answers": to_text(folder.answers(digest_of_record(record)))}
        for sweep, folder in folders.items()
        for record in folder.records()
    ]
    write_records(tmp_path / "tiny.jsonl", {"study": "tiny", "made": []}, records)
    return tmp_path / "tiny.jsonl"


@pytest.fixture
def fresh(ran: Ran, tmp_path: Path) -> Path:
    """A folder with the study's stores and nothing else."""
    shutil.copytree(ran.work / "stores", tmp_path / "work" / "stores")
    return tmp_path / "work"


def test_a_record_is_the_same_behind_a_file_but_for_what_no_table_needs(ran: Ran, file: Path) -> None:
    known = known_runs([file])
    assert len(known) == 8
    for sweep in ("base", "moved"):
        for record in RunsFolder(ran.work / "runs" / sweep).records():
            kept = known[next(d for d, each in known.items() if each["spec"] == record["spec"])]
            for name in ("score", "validation_score", "scores", "best_epoch", "fusion_parameters", "evaluated"):
                assert kept[name] == record[name]
            assert [point["epoch"] for point in kept["curve"]] == [point["epoch"] for point in record["curve"]]
            assert kept["curve"][0]["loss"] == pytest.approx(record["curve"][0]["loss"], rel=1e-5)
            assert not {"weights_sha256", "labels", "encoding", "draw"} & set(kept)
    again = file.with_name("again.jsonl")
    write_records(again, *read_records(file))
    assert again.read_bytes() == file.read_bytes()


def test_known_runs_are_not_trained_and_stand_in_tables_and_page(
    ran: Ran, file: Path, fresh: Path, fusionkit: Command
) -> None:
    plan = json.loads(ran.command("--only", "base", "--known", file, "--dry-run", "--json", work=fresh).out)
    assert [step["told"] for step in plan if step["step"] == "fit base"] == ["6 known from records"]
    more = ("--only", "base", "--known", file, "--set", "report=yes", "--set", "figures=[layer-weights]")
    done = ran.command(*more, work=fresh)
    assert done.code == 0, done.err
    assert "6 runs of 6 known: records without weights" in done.err
    assert "no weights to predict by" in done.err
    against = "tables/against.md"
    assert (fresh / against).read_text() == (ran.work / against).read_text()
    assert list(fresh.glob("runs/*/*/weights.safetensors")) == []
    assert (fresh / "figures" / "layer-weights.svg").is_file()
    # Begun again by a study that begins other runs from them, it says that there is nothing to begin from.
    [run, *_] = RunsFolder(fresh / "runs" / "base").record_files()
    store, runs = fresh / "stores" / "one.store", fresh / "new"
    for args in (
        ("predict", run.parent, "--input", ran.data / "one" / "test.jsonl"),
        ("export", run.parent, "--to", fresh / "head"),
        ("fit", store, "--label", "intent", "--fusion", "last", "--init-from", run.parent, "--out", runs),
    ):
        refused = fusionkit(*args)
        assert refused.code == 2
        assert f"the run {run.parent} has no weights: its record was taken from {file}" in refused.err
        assert "remedy:   remove that folder, then train the run" in refused.err


def test_runs_that_others_begin_from_are_trained(ran: Ran, file: Path, fresh: Path) -> None:
    taken = ran.command("--only", "base", "--known", file, work=fresh)
    assert "6 runs of 6 known" in taken.err
    (fresh / "sweeps" / "base.yaml").unlink()
    assert "1 of 4 steps done now" in ran.command("--only", "base", "--known", file, work=fresh).out
    assert (fresh / "sweeps" / "base.yaml").is_file()
    done = ran.command("--known", file, "--workers", 1, work=fresh)  # now other runs begin from these
    assert done.code == 0, done.err
    assert "2 runs of 2 known" in done.err
    assert {path.parents[1].name for path in fresh.glob("runs/*/*/weights.safetensors")} == {"base"}
    assert (fresh / "tables" / "wide.md").read_text() == (ran.work / "tables" / "wide.md").read_text()


def test_a_stopped_run_is_taken_as_well_and_a_finished_record_goes_before_it(file: Path) -> None:
    head, records = read_records(file)
    stopped = [{**record, "status": "stopped", "score": None} for record in records[:2]]
    write_records(file.with_name("stopped.jsonl"), head, [*stopped, {**records[2], "status": "failed"}])
    alone = known_runs([file.with_name("stopped.jsonl")])
    assert [each["status"] for each in alone.values()] == ["stopped", "stopped"]
    assert {each["status"] for each in known_runs([file.with_name("stopped.jsonl"), file]).values()} == {"finished"}


def test_a_line_ends_only_where_the_file_has_a_line_end(file: Path) -> None:
    """JSON leaves other characters as they are that end a line for Python."""
    head, records = read_records(file)
    write_records(file, {**head, "study": "one\u2028two\x85three"}, records)
    again, same = read_records(file)
    assert again["study"] == "one\u2028two\x85three"
    assert len(same) == len(records)


@pytest.mark.parametrize(
    ("spoil", "line", "what"),
    [
        (lambda text: text[:-9], 9, "no JSON"),
        (lambda text: text.replace('"fusion":"last"', '"fusion":"concat"', 1), 2, "the spec is that of another run"),
        (lambda text: text.replace('"fusion":"last"', '"fusoin":"last"', 1), 2, "unknown field of a run 'fusoin'"),
        (lambda text: text.replace('"spec":{', '"spce":{', 1), 2, "no record of a run"),
        (lambda text: text + "[]\n", 10, "no JSON object"),
        (lambda text: text.splitlines()[0], None, "holds no records"),
        (lambda text: "", None, "holds no records"),
    ],
)
def test_what_is_no_file_of_records_is_refused_with_its_line(
    spoil: Callable[[str], str], line: int | None, what: str, ran: Ran, file: Path, tmp_path: Path
) -> None:
    file.write_text(spoil(file.read_text(encoding="utf-8")), encoding="utf-8")
    done = ran.command("--known", file, work=tmp_path / "none")
    assert done.code == 2
    assert f"{file}, line {line}: {what}" in done.err if line else f"{file} {what}" in done.err
    assert not (tmp_path / "none").exists()


def test_the_script_keeps_what_was_run_and_what_others_ran(
    evidence: Any, ran: Ran, fresh: Path, file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(evidence, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(evidence, "STUDIES", {"tiny": ran.file})
    kept = tmp_path / "records" / "tiny.jsonl"
    evidence.keep_records("tiny", [f"data={ran.data}"], fresh, evidence.machine())
    assert not kept.exists()  # there is nothing yet
    evidence.keep_records("tiny", [f"data={ran.data}"], ran.work, evidence.machine())
    head, records = read_records(kept)
    assert [record["sweep"] for record in records] == ["base"] * 6 + ["moved"] * 2
    assert {record["made"] for record in records} == {0}
    assert {"hardware", "instructions", "torch", "commit", "date"} < set(head["made"][0])
    store = open_store(ran.work / "stores" / "one.store")
    told = head["encoding"][store.digest]
    assert told["hardware"] == head["made"][0]["hardware"]
    seconds = json.loads((store.path / "parts" / "train-00000.json").read_text())["seconds"]
    assert told["seconds"]["train"] == pytest.approx(seconds, abs=0.06)
    before = kept.read_bytes()
    later = {"hardware": "another"}
    for work in (fresh, ran.work):  # where no run is, and where all are
        evidence.keep_records("tiny", [f"data={ran.data}"], work, later)
        assert kept.read_bytes() == before
    # A run that is lost here is taken from the folder again, under the machine of its training.
    lines = before.decode().splitlines()
    kept.write_text("\n".join([*lines[:3], *lines[4:]]) + "\n")
    evidence.keep_records("tiny", [f"data={ran.data}"], ran.work, later)
    head, again = read_records(kept)
    assert [record["digest"] for record in again] == [record["digest"] for record in records]
    assert [record["made"] for record in again] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert head["made"][1] == later
    # What `fusionkit ablate` found since is added to the run's record.
    digest = records[0]["digest"]
    ablated = Ablation(digest, "houlsby:4", "validation", 9, [1], {"": "accuracy"}, {"": 0.8}, [(1, 1, {"": 0.6})])
    folder = RunsFolder(ran.work / "runs" / records[0]["sweep"]).path / digest
    write_ablation(folder, ablated)
    evidence.keep_records("tiny", [f"data={ran.data}"], ran.work, later)
    (folder / ABLATION).unlink()
    assert [ablation_from(each["ablation"]) for each in read_records(kept)[1] if "ablation" in each] == [ablated]
    # A folder of an encoder is of one machine: its name is kept, not its path.
    kept.write_text(before.decode().replace('"encoder":"minilm"', '"encoder":"/a/folder/mpnet"'))
    evidence.keep_records("tiny", [f"data={ran.data}"], ran.work, later)
    assert kept.read_text() == before.decode().replace('"encoder":"minilm"', '"encoder":"mpnet"')


def test_the_script_keeps_a_run_in_each_of_its_sweeps(
    evidence: Any, ran: Ran, fresh: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ran.file.read_text()
    again = text[text.index("  base:") : text.index("  moved:")].replace("base", "again")
    study = file.with_name("tiny.yaml")
    study.write_text(text.replace("comparisons:", f"{again}comparisons:"))
    monkeypatch.setattr(evidence, "RECORDS", file.parent)
    monkeypatch.setattr(evidence, "STUDIES", {"tiny": study})
    records = [{**each, "made": 1} for each in read_records(file)[1]]
    records += [{**each, "sweep": "again", "made": 0} for each in records if each["sweep"] == "base"]
    made = [{"hardware": "one"}, {"hardware": "another"}]
    write_records(file, {"study": "tiny", "made": made}, records)
    evidence.keep_records("tiny", [f"data={ran.data}"], fresh, {})
    head, found = read_records(file)
    assert [(each["sweep"], each["made"]) for each in found] == [
        *[("base", 1)] * 6, *[("moved", 1)] * 2, *[("again", 0)] * 6
    ]  # fmt: skip
    assert head["made"] == made


def test_the_script_takes_settings_of_places_alone(
    evidence: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Runs of a changed study would take the place of the published ones."""
    for setting in ("fit.epochs=1", "sources.sst2.limit=100", "limit=400"):
        monkeypatch.setattr("sys.argv", ["evidence.py", str(tmp_path), str(tmp_path), "first-page", "--set", setting])
        with pytest.raises(SystemExit):
            evidence.main()
        assert f"--set {setting} changes the study" in capsys.readouterr().err
    assert all(evidence.PLACE.match(each) for each in ("encoder=a", "sources.sst2=b", "sources.sst2.source=b"))


def test_the_script_refuses_an_unknown_sweep_before_any_work(
    evidence: Any, ran: Ran, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(evidence, "STUDIES", {"tiny": ran.file})
    with pytest.raises(UsageError, match="unknown sweep 'bsae'"):
        evidence.run_study("tiny", [f"data={ran.data}"], tmp_path / "work", ["bsae"])
    assert not (tmp_path / "work").exists()


def test_the_script_lays_a_table_out_as_its_mark_says(
    evidence: Any, ran: Ran, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "RECORDS", file.parent)
    monkeypatch.setattr(evidence, "STUDIES", {"tiny": ran.file})
    text = "a\n<!-- records: tiny wide -->\nold\n<!-- end -->\nb\n"
    table = (ran.work / "tables" / "wide.md").read_text()
    # The documents say themselves that scores are of test and in percent.
    table = table.removesuffix(f"\n{UNITS_NOTE}\n").replace(" scored on |", "").replace(" test |", "")
    table = table.replace(" --- |", "", 1)
    made = evidence.wrapped(f"{table}\n{evidence.made_of('tiny', 'wide', {})}")
    assert "tiny.yaml, trained on " in made
    with pytest.raises(UsageError, match="unknown published table 'tiny wide'"):
        evidence.table_of("tiny", "wide", {"paper": "yes"})
    with pytest.raises(UsageError, match="errors=yes is for a table of the comparison's own scores"):
        evidence.table_of("tiny", "wide", {"errors": "yes", "show": "weights"})
    none_of_them = evidence.made_of("tiny", "wide", {"data": "another"})
    assert none_of_them.endswith("trained on *\n")  # the machines of the runs that a table shows, not of all
    foreign = file.with_name("tiny.yaml")
    foreign.write_text(ran.file.read_text().replace("encoder: minilm", "encoder: some/encoder\ntitle: Tiny (4-bit)"))
    monkeypatch.setattr(evidence, "STUDIES", {"tiny": foreign})
    assert "tiny.yaml (Tiny (4-bit)), trained on " in evidence.made_of("tiny", "wide", {})
    monkeypatch.setattr(evidence, "STUDIES", {"tiny": ran.file})
    assert evidence.with_tables(text) == f"a\n<!-- records: tiny wide -->\n{made}<!-- end -->\nb\n"
    assert evidence.with_tables(evidence.with_tables(text)) == evidence.with_tables(text)
    some = evidence.table_of(
        "tiny", "wide", {"sweep": "moved", "label": "intent", "metric": "accuracy,macro_f1", "notes": "no"}
    )
    assert some.splitlines()[0] == "| evaluated | fusion | accuracy | macro F1 |"
    assert len(some.splitlines()) == 4

    def notes(metrics: str) -> set[str]:
        made = evidence.table_of("tiny", "wide", {"sweep": "moved", "label": "intent", "metric": metrics})
        return {line for line in made.splitlines() if line and not line.startswith("|")}

    accuracy, macro = notes("accuracy"), notes("macro_f1")
    assert accuracy - macro
    told = {f"accuracy: {note}" for note in accuracy - macro} | {f"macro F1: {note}" for note in macro - accuracy}
    assert notes("accuracy,macro_f1") == told | (accuracy & macro)
    weights = evidence.table_of("tiny", "wide", {"label": "slots", "show": "weights"}).splitlines()
    assert weights[0] == "| sweep | evaluated | fusion | 0 | 6 |"
    assert sum(map(float, weights[2].strip("| ").split(" | ")[3:])) == pytest.approx(1, abs=0.02)


def test_the_script_draws_a_picture_where_the_runs_or_the_seconds_of_encoding_changed(
    evidence: Any, ran: Ran, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evidence, "RECORDS", file.parent)
    page, drawn = file.with_name("page.md"), file.with_name("a.svg")
    monkeypatch.setattr(evidence, "DOCUMENTS", [page])
    page.write_text("a\n<!-- picture: tiny seconds-from-text base -->\n![Scores\nby seconds](a.svg)\n")
    with pytest.raises(UsageError, match="no data for the figure"):
        evidence.draw_pictures()  # no record says how long the encoding took
    head, records = read_records(file)
    store = open_store(ran.work / "stores" / "one.store").digest
    for seconds, changed in ((40.0, True), (40.0, False), (80.0, True)):
        write_records(file, {**head, "encoding": {store: {"seconds": {"all": seconds}}}}, records)
        before = drawn.read_bytes() if drawn.exists() else b""
        evidence.draw_pictures()
        assert (drawn.read_bytes() != before) == changed == ("a.svg: drawn" in capsys.readouterr().out)
