"""A corpus of files that users give, changed at random: each is read or refused by one clear error, soon.

The corpus is ``tests/faults/hostile``, with a run's record and an exported head beside. A change cuts, flips, inserts,
repeats a piece thousands of times, nests it, or splices another file's piece in.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fusionkit.cluster import read_settings
from fusionkit.encode import encode
from fusionkit.encoder import Encoder
from fusionkit.errors import FusionkitError, FusionkitWarning
from fusionkit.exported import export_run, open_heads
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.sweep.file import read_sweep
from fusionkit.runs.claims import runs_status
from fusionkit.runs.records_file import known_runs, write_records
from fusionkit.sources import first_example, guess_columns, open_source, prepared
from fusionkit.specs import EncodeSpec
from fusionkit.store import open_store
from fusionkit.study import read_study

HOSTILE = Path(__file__).parent / "hostile"
SECONDS, BYTES = 5.0, 1 << 30  # processor time of one file, and memory of all
GATE = settings().max_examples
SETTINGS = settings(
    max_examples=GATE if GATE <= 100 else 5 * GATE,  # 10,000 in the soak
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
HEAD, RECORD = "config.json", "run.json"


def source(path: Path, lines: bool = False) -> None:
    opened = open_source(str(path), lines=lines)
    first_example(opened, columns := guess_columns(opened))
    ready, _ = prepared(opened, columns)
    for split in ready.splits.values():
        for batch in split.batches():
            batch.to_pylist()


def record(path: Path) -> None:
    runs = RunsFolder(path.parent.parent)
    runs_status(runs)
    runs.frame()


# What reads a file, by the end of its name.
READERS: dict[str, Callable[[Path], object]] = {
    ".sweep.yaml": read_sweep,
    ".study.yaml": lambda path: read_study(path, ()),
    ".cluster.yaml": read_settings,
    "records.jsonl": lambda path: known_runs([path]),
    RECORD: record,
    HEAD: lambda path: open_heads([path.parent], encoder="is here"),
    "lines.txt": lambda path: source(path, lines=True),
    **dict.fromkeys((".csv", ".tsv", ".jsonl", ".conllu", ".txt"), source),
}


@pytest.fixture(scope="module")
def corpus(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the corpus, each in its place: a head's config beside its weights, a record in its run's folder."""
    folder = tmp_path_factory.mktemp("hostile")
    shutil.copytree(HOSTILE, folder / "files")
    source = open_source(str(HOSTILE / "plain.csv"))
    encode(source, guess_columns(source, text="text"), folder / "a.store", EncodeSpec(rows="mean"), encoder)
    store, runs = open_store(folder / "a.store"), RunsFolder(folder / "runs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scores of one example
        records = fit(store, expand(store, fusions=["linear"], epochs=1), runs)
    export_run(next(path for path in runs.path.iterdir() if path.is_dir()), folder / "head")
    write_records(folder / "files" / "records.jsonl", {"study": "a", "made": []}, [{"sweep": "a", **records[0]}])
    return folder


def files_of(corpus: Path) -> list[Path]:
    return [*sorted((corpus / "files").iterdir()), corpus / "head" / HEAD, next((corpus / "runs").glob(f"*/{RECORD}"))]


def refusal(path: Path) -> FusionkitError | None:
    """The error with which a file is refused; every other exception is a defect."""
    read = next(reader for end, reader in READERS.items() if path.name.endswith(end))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FusionkitWarning)
            read(path)
    except FusionkitError as error:
        return error
    return None


CHANGE = st.tuples(
    st.sampled_from(["cut", "flip", "insert", "repeat", "nest", "splice", "number"]),
    st.integers(0, 1 << 16),
    st.integers(1, 64),
    st.one_of(
        st.binary(max_size=9),
        st.sampled_from(
            [b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[2J", b"*a", b"&a ", b"!!python/object:os.system", b"\r"]
        ),
    ),
)


def changed(raw: bytes, other: bytes, change: tuple[str, int, int, bytes]) -> bytes:
    """A file's bytes with one change, about ``length`` bytes from a place on."""
    action, number, length, extra = change
    at = number % (len(raw) + 1)
    piece, before, behind = raw[at : at + length], raw[:at], raw[at:]
    match action:
        case "cut":
            return before + raw[at + length :]
        case "flip":
            return before + bytes(each ^ 1 << number % 8 for each in piece[:1]) + raw[at + 1 :]
        case "insert":
            return before + extra + behind
        case "repeat":
            return before + piece * (number % 4000) + behind
        case "nest":
            opening, closing = (b"[", b"]") if number % 2 else (b'{"a":', b"}")
            return before + opening * (number % 20_000) + piece + closing * (number % 20_000) + raw[at + length :]
        case "number":
            return before + [b"1e308", b"-1", b"9" * 400, b"nan", b"1e15", b"0x1"][number % 6] + raw[at + length :]
    return before + other[number % (len(other) + 1) :] + behind


@example(which=9, other=0, changes=[("nest", 65535, 1, b"")])  # a name longer than a file system's
@SETTINGS
@given(which=st.integers(0, 63), other=st.integers(0, 63), changes=st.lists(CHANGE, min_size=0, max_size=4))
def test_a_hostile_file_is_read_or_refused_by_one_error_soon(
    corpus: Path, which: int, other: int, changes: list[tuple[str, int, int, bytes]]
) -> None:
    files = files_of(corpus)
    path = files[which % len(files)]
    raw, content = path.read_bytes(), path.read_bytes()
    for change in changes:
        content = changed(content, files[other % len(files)].read_bytes(), change)[: 4 << 20]
    began, held = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        path.write_bytes(content)
        refused = refusal(path)
    finally:
        path.write_bytes(raw)
    assert refused is None or refused.exit_code in (1, 2)
    assert time.process_time() - began < SECONDS, f"{path.name} took too long"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) * 1024 < BYTES, f"{path.name} took too much"


def test_the_corpus_itself_is_read(corpus: Path) -> None:
    assert {path.name: str(found) for path in files_of(corpus) if (found := refusal(path)) is not None} == {}


def test_what_the_changes_found_before_stays_refused(tmp_path: Path) -> None:
    found = {
        "digits.jsonl": '{"text": "rain", "label": ' + "9" * 5000 + "}",
        "deep.sweep.yaml": "label: tags\nlr: " + "[" * 18_381 + "]" * 18_381,
    }
    for name, content in found.items():
        (tmp_path / name).write_text(content)
        began, limit = time.process_time(), sys.getrecursionlimit()
        sys.setrecursionlimit(30_000)  # as a caller may have it: Python's own ends such a file early
        try:
            assert refusal(tmp_path / name) is not None, name
        finally:
            sys.setrecursionlimit(limit)
        assert time.process_time() - began < SECONDS, name
