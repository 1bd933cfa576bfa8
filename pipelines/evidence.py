"""Run the studies of record, keep their records in docs/records, make the documents' tables and pictures from them.

    python pipelines/evidence.py DATA WORK [STUDY ...] [--encoders FOLDER] [--set KEY=VALUE] [--only SWEEP]
                                             run studies, keep records, make tables and pictures
    python pipelines/evidence.py --tables    make both anew from the records that are there

Without names, the studies that have a table are run. ``--encoders`` names a folder with copies of encoders: a study
that names ``some/encoder`` of the hub takes FOLDER/encoder, if that is there. ``--only`` names a sweep of one study,
where the whole study takes too long for one go. DATA holds the data sets (pipelines/minilm/README.md#data), WORK/STUDY
takes each study's stores and runs. xSID has no train split: WORK/data has links to DATA, and xSID with one
(pipelines/attention-fusion/xsid.py). A run that has a record counts as done, whichever study the record is of. The same
command continues after a kill: records are kept every few minutes. A table stands in a document between two marks:

    <!-- records: STUDY COMPARISON [metric=NAME,NAME] [COLUMN=VALUE ...] [show=WHAT] [OPTION=yes] [notes=no] -->
    <!-- end -->

The table shows the study's comparison over the records of docs/records/STUDY.jsonl. ``metric`` shows other scores,
several side by side; ``COLUMN=VALUE`` only the groups with this value; ``show=weights`` the mean weight of each layer;
``show=lr`` the chosen rate; ``show=grid`` the score at each rate; ``show=guideline`` the best method and those that tie
with it, for each data set and number of examples; ``show=budgets`` the best method for each number of seconds;
``show=costs`` weights, bytes, seconds and memory; ``show=seconds`` the seconds with the encoding;
``floors=yes`` also the floors; ``paper=yes`` the paper's numbers (pipelines/published.yaml); ``errors=yes`` standard
errors behind ±, not deviations; ``notes=no`` leaves out the notes. A line below the table says where and when the
study's runs were trained. ``<!-- studies -->`` and ``<!-- end -->`` hold a list of the studies with what they took.

A picture stands below a mark that names a figure, and where needed the sweeps that it shows and the methods that it
leaves out:

    <!-- picture: STUDY FIGURE [SWEEP,SWEEP] [without=METHOD] -->
    ![TEXT](FILE)

A file of records begins with the seconds that encoding the study's stores took. They are kept once: costs of a data set
are comparable only if they come from one machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml

from fusionkit.errors import FusionkitError, UsageError, unknown_name
from fusionkit.io.files import write_durably
from fusionkit.machine.resources import cores
from fusionkit.metrics import metric_name
from fusionkit.plural import counted
from fusionkit.runs.ablations import read_ablation
from fusionkit.runs.choice import chosen_by, runs_of
from fusionkit.runs.floors import are_floors
from fusionkit.runs.folder import RunsFolder
from fusionkit.runs.record import digest_of_record, is_floor
from fusionkit.runs.records_file import KEPT, KEPT_ABLATION, TAKEN_FROM, read_records, write_records
from fusionkit.runs.shown_split import TEST
from fusionkit.runs.summary import group_columns
from fusionkit.runs.tables.paper_tables import markdown
from fusionkit.specs import FROZEN
from fusionkit.statistics.answer_bytes import to_text
from fusionkit.store.encode_seconds import encode_seconds
from fusionkit.study.fit_step import SweepFit
from fusionkit.study.folder import StudyFolder
from fusionkit.study.read import read_comparisons, read_study
from fusionkit.study.report_steps import answers_of, frame_of, summary_of
from pictures import draw_picture
from published import published, with_published
from record_tables import (
    SweepRecords,
    budgets_table,
    costs_table,
    from_text,
    grid_table,
    guideline_table,
    on_test,
    only,
    rates_table,
    seconds_table,
    studies_table,
    weights_table,
    wrapped,
)

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs" / "records"
STUDIES = {
    path.stem: path for path in ROOT.glob("pipelines/*/*.yaml") if "\nsweeps:" in path.read_text(encoding="utf-8")
}
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "results.md")
BUNDLED = "minilm"
XSID = ROOT / "pipelines" / "attention-fusion" / "xsid.py"
PLACE = re.compile(r"(data|encoder|sources\.[^.=]+(\.source)?)=")  # settings that say where something is
OPTIONS = ("metric", "show", "floors", "paper", "errors", "notes")  # of a mark; all others choose rows
MARK = re.compile(r"(?m)^(<!-- records: (\S+) (\S+)((?: [a-z_]+=\S+)*) -->\n)(?:.*\n)*?(<!-- end -->)$")
STUDIES_MARK = re.compile(r"(?m)^(<!-- studies -->\n)(?:.*\n)*?(<!-- end -->)$")
PICTURE = re.compile(
    r"(?m)^<!-- picture: (\S+) (\S+)(?: (?!without=)(\S+))?(?: without=(\S+))? -->\n!\[[^]]*\]\((\S+)\)$"
)
KEEP_SECONDS = 300.0
THREADS = 1
FAST = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")  # instructions that change speeds or bits


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", help="the folder of data sets")
    parser.add_argument("work", type=Path, nargs="?", help="the folder for stores and runs, a folder a study")
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join(sorted(STUDIES))}")
    parser.add_argument("--encoders", type=Path, metavar="FOLDER", help="copies of encoders, by the ends of their ids")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="as of run")
    parser.add_argument("--only", action="append", default=[], metavar="SWEEP", help="as of run; of one study")
    parser.add_argument("--tables", action="store_true", help="write the tables alone")
    given = parser.parse_args()
    if not given.tables and (given.data is None or given.work is None):
        parser.error("DATA and WORK are missing; --tables alone needs none")
    if not given.tables and not given.data.is_dir():
        parser.error(f"{given.data} is no folder; expected the one of data sets (pipelines/minilm/README.md#data)")
    if given.encoders is not None and not given.encoders.is_dir():
        parser.error(f"--encoders {given.encoders} is no folder; expected one that holds folders of encoders")
    if strange := [each for each in given.settings if not PLACE.match(each)]:
        # Records of a changed study would take the place of those of the study of record.
        expected = "data=, encoder= or sources.NAME=; for other settings use `fusionkit run`"
        parser.error(f"--set {strange[0]} changes the study; expected {expected}")
    if given.only and len(given.studies) != 1:
        parser.error(f"--only takes sweeps of one study; received {len(given.studies)} studies: name one")
    if strange := [name for name in given.studies if name not in STUDIES]:
        parser.error(f"no study of record: {strange[0]}; expected some of {', '.join(sorted(STUDIES))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    data, failed = given.data if given.tables else data_of(given.data, given.work), []
    try:
        for name in () if given.tables else given.studies or sorted({study for study, _ in marks()}):
            settings = [f"data={data.resolve()}", *encoder_of(name, given.encoders), *given.settings]
            if run_study(name, settings, given.work.resolve() / name, given.only):
                failed.append(name)
            write_tables()
        write_tables()
        draw_pictures()
    except FusionkitError as error:
        sys.exit(f"{error}")
    if failed:
        sys.exit(f"not done: {', '.join(failed)}; the errors are above")


def data_of(data: Path, work: Path) -> Path:
    """DATA, or where it holds xSID as published, WORK/data: links to DATA, and xSID with a train split."""
    if not (data / "xsid").is_dir() or any(data.glob("xsid-*")):
        return data
    made = subprocess.run([sys.executable, str(XSID), str(data), str(work / "data")])
    if made.returncode:  # the script has said why
        sys.exit(made.returncode)
    return work / "data"


def encoder_of(name: str, encoders: Path | None) -> list[str]:
    """The setting of a study's encoder: a copy of it in the folder of encoders, if there is one."""
    encoder = yaml.safe_load(STUDIES[name].read_text(encoding="utf-8"))["encoder"]
    if encoders is None or not (copy := encoders.resolve() / encoder.rpartition("/")[2]).is_dir():
        return []
    return [f"encoder={copy}"]


def marks() -> list[tuple[str, str]]:
    """The study and the comparison of each table of the documents, including tables that wait for records."""
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    return [mark for text in texts for mark in re.findall(r"<!-- records[a-z-]*: (\S+) (\S+)", text)]


def run_study(name: str, settings: Sequence[str], work: Path, sweeps: Sequence[str] = ()) -> int:
    """Run one study, or these sweeps of it, and keep its records, even if it is stopped; returns the exit code."""
    # A wrong --set or --only fails here, before any work.
    read_study(STUDIES[name], list(settings), list(sweeps))
    files = sorted(RECORDS.glob("*.jsonl"), key=lambda path: (path.stem != name, path.stem))  # its own first
    command = [sys.executable, "-m", "fusionkit", "run", str(STUDIES[name])]
    command += [*(f"--set={setting}" for setting in settings), *(f"--only={sweep}" for sweep in sweeps)]
    command += ["--out", str(work), "--threads", str(THREADS), *(f"--known={path}" for path in files)]
    print(f"== {name}", flush=True)
    now = machine()
    child = subprocess.Popen(command, cwd=ROOT)
    try:
        while child.poll() is None:
            try:
                child.wait(KEEP_SECONDS)
            except subprocess.TimeoutExpired:
                keep_records(name, settings, work, now)
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
        keep_records(name, settings, work, now)
    return child.returncode


def kept_in(path: Path) -> tuple[list[dict[str, Any]], list[tuple[dict[str, Any], dict[str, Any]]]]:
    """The machines and dates of a file, and each record with its entry of that list, ``{}`` if it has none; both empty
    if there is no file.
    """
    head, records = read_records(path) if path.is_file() else ({}, [])
    made = head.get("made", [])
    return made, [(each, made[each["made"]] if "made" in each else {}) for each in records]


def keep_records(name: str, settings: Sequence[str], work: Path, now: dict[str, Any]) -> None:
    """Write the runs of a study's folder into its file of records, beside the records that are there.

    A finished record that is there stays as it is, except that missing ``answers`` are added. Once a sweep is complete,
    runs that the study no longer asks for are left out; until then they stay. ``now`` is the :func:`machine` of runs
    without a record: also of those that an earlier call, or ``fusionkit run``, has trained in the same folder.
    """
    path = RECORDS / f"{name}.jsonl"
    files = {each: kept_in(each) for each in (path, *sorted(RECORDS.glob("*.jsonl")))}
    places, own = files[path]
    known: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for _, records in files.values():
        for record, made in records:
            first, _ = known.setdefault(record["digest"], (record, made))
            if record["status"] == "finished" and first["status"] != "finished":
                known[record["digest"]] = record, made
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    encoding = read_records(path)[0].get("encoding", {}) if path.is_file() else {}
    fittings: dict[str, SweepFit] = {}
    for sweep, step in read_study(STUDIES[name], list(settings)).sweeps.items():
        fittings[sweep] = SweepFit(step, StudyFolder(work), before=dict(fittings))
        encoding = {**encoding_in(fittings[sweep], now), **encoding}
        before = {record["digest"]: (record, made) for record, made in own if record["sweep"] == sweep}
        folder = RunsFolder(work / "runs" / sweep)
        runs = {digest_of_record(each): each for each in folder.all_records()}
        there = {digest: each for digest, each in runs.items() if each["status"] in KEPT}
        wanted = wanted_runs(fittings[sweep])
        complete = wanted is not None and set(wanted) <= {*there, *before}
        strangers = [] if complete else [digest for digest in before if digest not in (wanted or ())]
        new = sorted(there) if wanted is None else []
        for digest in dict.fromkeys([*(wanted or ()), *strangers, *new]):
            if digest in before and (digest not in there or before[digest][0]["status"] == "finished"):
                record, made = before[digest]
            elif digest not in there:
                continue
            elif TAKEN_FROM in there[digest]:
                if digest not in known:
                    continue  # its file of records is gone
                record, made = known[digest]
            else:
                record, made = there[digest], now
            if "answers" not in record and digest in there and (answers := folder.answers(digest)):
                # Also for a record that is in the file already, if these are the answers that were scored.
                scores = record.get("tests") or {record["evaluated"]: record["scores"].get(TEST, {})}
                same = not any(answers[name].unlike(scores[name]) for name in answers if name in scores)
                record = {**record, "answers": text} if same and (text := to_text(answers)) else record
            if digest in there and (ablation := read_ablation(folder.path / digest)) is not None:
                record = {**record, KEPT_ABLATION: dataclasses.asdict(ablation)}
            found.append(({**record, "sweep": sweep}, made))
    if found:
        for _, made in found:
            if made and made not in places:
                places.append(made)
        places = [each for each in places if any(each == made for _, made in found)]
        numbered = [
            {
                **{k: v for k, v in record.items() if k != "made"},
                # Only the name of an encoder in a folder: the folder's path is valid on this machine alone.
                "encoder": Path(record["encoder"]).name if Path(record["encoder"]).is_absolute() else record["encoder"],
                **({"made": places.index(made)} if made else {}),
            }
            for record, made in found
        ]
        write_records(path, {"study": name, "made": places, **({"encoding": encoding} if encoding else {})}, numbered)


def wanted_runs(fitting: SweepFit) -> list[str] | None:
    """The digests of a sweep's runs, in its order; None where its stores, or the runs it starts from, are missing."""
    try:
        return [spec.digest for spec in fitting.sweep.specs]
    except (FusionkitError, OSError):
        return None


def encoding_in(fitting: SweepFit, now: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By the digest of each store of a sweep: its name, the seconds of each split's encoding, and the machine, its
    cores and the date of this run of the script, which encoded the store or found it.
    """
    try:
        stores = fitting.stores.items()
    except (FusionkitError, OSError):
        return {}
    where = {key: now[key] for key in ("hardware", "cores", "date") if key in now}
    return {
        store.digest: {"data": name, "seconds": {split: round(took, 1) for split, took in seconds.items()}, **where}
        for name, store in stores
        if (seconds := encode_seconds(store))
    }


def machine() -> dict[str, Any]:
    """The date, commit, torch version and hardware of runs whose training begins here and now."""
    info = Path("/proc/cpuinfo")
    told = info.read_text(encoding="utf-8") if info.is_file() else ""
    model = re.search(r"model name\s*: (.*)", told)
    flags = set(match[1].split()) if (match := re.search(r"(?:flags|Features)\s*: (.*)", told)) else set()
    commit = subprocess.run(
        ["git", "describe", "--always", "--abbrev=10", "--dirty=+"], cwd=ROOT, capture_output=True, text=True
    )
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip() or "unknown",
        "torch": torch.__version__,
        "hardware": model[1] if model else platform.processor() or platform.machine(),
        "instructions": [name for name in FAST if name in flags],
        "cores": cores(),
        "threads": THREADS,
    }


def write_tables() -> None:
    """Write the tables of the documents anew."""
    for path in DOCUMENTS:
        before = path.read_text(encoding="utf-8")
        if (after := with_tables(before)) != before:
            write_durably(path, after.encode())
            print(f"{path.relative_to(ROOT)}: tables written")


def draw_pictures() -> None:
    """Draw the pictures of the documents anew, those that differ from the ones that are there."""
    for document in DOCUMENTS:
        for study, figure, sweeps, without, file in PICTURE.findall(document.read_text(encoding="utf-8")):
            head, records = records_of(RECORDS / f"{study}.jsonl")
            of = sweeps.split(",") if sweeps else {record["sweep"] for record in records}
            shown = [
                record
                for record in records
                if record["status"] == "finished"
                and record["sweep"] in of
                and record["spec"].get("method", FROZEN) != without
            ]
            if draw_picture(figure, shown, head.get("encoding", {}), document.parent / file):
                print(f"{file}: drawn")


def with_tables(text: str) -> str:
    """A document's text with each of its tables made anew from the records."""

    def written(mark: re.Match[str]) -> str:
        options = dict(option.split("=", 1) for option in mark[4].split())
        of = mark[2], mark[3], options
        return mark[1] + wrapped(table_of(*of) + "\n" + made_of(*of)) + mark[5]

    return MARK.sub(written, STUDIES_MARK.sub(lambda mark: mark[1] + studies_list() + mark[2], text))


def studies_list() -> str:
    """A Markdown table of the studies that have records: name, title, number of runs, hours of their training."""
    listed = []
    for study, path in sorted(STUDIES.items(), key=lambda item: item[1].parts[-2:]):
        if (kept := RECORDS / f"{study}.jsonl").is_file():
            title = yaml.safe_load(path.read_text(encoding="utf-8"))["title"]
            listed.append((study, title, [r for r in records_of(kept)[1] if not is_floor(r)]))
    return studies_table(listed)


def records_of(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head and the records of a file; it is read once for all of its tables."""
    return _read_once(path, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(32)
def _read_once(path: Path, changed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return read_records(path)


def made_of(study: str, name: str, options: Mapping[str, str]) -> str:
    """A line that names a study's file and says where and when the runs of a table were trained. The first line of the
    study's records has the commits.
    """
    head, records = records_of(RECORDS / f"{study}.jsonl")
    comparison = read_comparisons(STUDIES[study])[name]
    shown = [r for r in records if r["sweep"] in comparison.sweeps and not is_floor(r)]
    if choice := {key: value for key, value in options.items() if key not in OPTIONS}:
        of = {sweep: SweepRecords([r for r in shown if r["sweep"] == sweep]) for sweep in comparison.sweeps}
        digests = set(only(frame_of(comparison, of), choice)["digest"])
        shown = [r for r in shown if r["digest"] in digests]
    machines: dict[str, set[str]] = {}
    for each in (head["made"][number] for number in sorted({r["made"] for r in shown if "made" in r})):
        instructions = f" with {each['instructions'][-1]}" if each.get("instructions") else ""
        having = f", {counted(each['cores'], 'core')}" if "cores" in each else ""
        threads = counted(each["threads"], "thread")
        on = f"{each.get('hardware', 'an unnamed CPU')}{instructions}{having}, {threads} a run"
        machines.setdefault(on, set()).add(each["date"])
    told = "; ".join(f"{on} ({' to '.join(sorted({min(when), max(when)}))})" for on, when in machines.items())
    written = yaml.safe_load(STUDIES[study].read_text(encoding="utf-8"))
    # The title names the encoder. If it is not bundled, scores depend on its weights, which may be 4-bit ones.
    named = "" if written.get("encoder", BUNDLED) == BUNDLED else f" ({written['title']})"
    return f"*{'/'.join(STUDIES[study].parts[-3:])}{named}, trained on {told}*\n"


def table_of(study: str, name: str, options: Mapping[str, str]) -> str:
    """A comparison of a study over its records, as a Markdown table."""
    if study not in STUDIES:
        raise unknown_name("study of record", study, STUDIES)
    comparisons = read_comparisons(STUDIES[study])
    if name not in comparisons:
        raise unknown_name(f"comparison of {study}", name, comparisons)
    comparison, choice = comparisons[name], dict(options)
    if choice.pop("paper", "") == "yes":
        of_paper = " ".join([study, name, *([choice["show"]] if "show" in choice else [])])
        if of_paper not in published():
            raise unknown_name("published table", of_paper, published())
        return with_published(table_of(study, name, choice), published()[of_paper])
    metrics, show = choice.pop("metric", "").split(","), choice.pop("show", "")
    told, errors = choice.pop("notes", "") != "no", choice.pop("errors", "") == "yes"
    records = records_of(RECORDS / f"{study}.jsonl")[1]
    sweeps = {sweep: SweepRecords([r for r in records if r["sweep"] == sweep]) for sweep in comparison.sweeps}
    frame = frame_of(comparison, sweeps)
    if choice.pop("floors", "") != "yes":
        frame = frame[~are_floors(frame)]
    if show in ("", "guideline", "budgets", "grid") and not any(metrics):
        summary, notes = summary_of(comparison, frame, print, answers_of(sweeps))
        if show in ("guideline", "budgets"):
            summary = from_text(summary, records_of(RECORDS / f"{study}.jsonl")[0]["encoding"])
            return (guideline_table if show == "guideline" else budgets_table)(only(summary, choice))
        if show == "grid":
            assert comparison.across is not None, "a grid has the groups of `across` side by side"
            return grid_table(only(summary, choice), comparison.by, comparison.across)
        shown = summary.assign(std=summary["se_seeds"]) if errors else summary
        return markdown(only(on_test(shown), choice), notes if told else (), comparison.across)
    if errors:
        raise UsageError(
            "errors=yes is for a table of the comparison's own scores", received=f"{study} {name} {choice}"
        )
    # Other scores, weights and rates are those of the runs that the comparison's own score chooses.
    counted = chosen_by(comparison.choose_by, frame, (*comparison.by, *comparison.average))
    if show == "lr":
        assert comparison.across is not None
        return rates_table(only(counted.frame, choice), comparison.by, comparison.across)
    by_digest = {record["digest"]: record for record in records}
    if show == "costs":
        assert comparison.across is not None
        return costs_table(only(counted.frame, choice), comparison.by, comparison.across, by_digest)
    if show == "seconds":
        assert comparison.across is not None
        encoding = records_of(RECORDS / f"{study}.jsonl")[0]["encoding"]
        return seconds_table(only(counted.frame, choice), comparison.by, comparison.across, by_digest, encoding)
    if show == "weights":
        keys = group_columns(counted.frame, comparison.by, counted.columns, comparison.average)
        return weights_table(only(counted.frame, choice), keys, by_digest)
    summaries, of_notes = [], dict[str, list[str]]()  # the metrics that each note is about
    for metric in metrics:
        of_metric = dataclasses.replace(comparison, metric=metric, choose_by=None)
        scores = frame_of(of_metric, sweeps)  # floors are not among the runs that were counted
        summary, notes = summary_of(of_metric, runs_of(counted.frame, scores, comparison.by), print, answers_of(sweeps))
        summaries.append(only(on_test(summary), choice))
        for note in notes:
            of_notes.setdefault(note, []).append(metric_name(metric))
    notes = [note if len(of) == len(metrics) else f"{', '.join(of)}: {note}" for note, of in of_notes.items()]
    across = comparison.across if len(metrics) == 1 else "metric"
    return markdown(pd.concat(summaries), [*counted.notes, *notes] if told else (), across)


if __name__ == "__main__":
    main()
