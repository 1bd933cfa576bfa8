"""``fusionkit predict`` over the bundled corpus with the bundled encoder."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.cli.predict_io import runs_and_texts
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.errors import UsageError
from fusionkit.fit.model.checkpoint import open_run
from fusionkit.fit.train.decisions import predict
from fusionkit.predict import load
from fusionkit.store import open_store

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def runs(fusionkit: Command, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head for intents and a CRF for slots."""
    out = tmp_path_factory.mktemp("predict") / "runs"
    for choices in (("intent", "--pool", "mean"), ("slots", "--head", "crf")):
        done = fusionkit(
            "fit", store, "--label", *choices, "--fusion", "linear", "--epochs", 6, "--floor", "none", "--out", out
        )
        assert done.code == 0, done.err
    # What learned control labels lies beside them, and predicts nothing.
    again = ("--label", "intent", "--pool", "mean", "--fusion", "linear", "--epochs", 6, "--control", "--floor", "none")
    done = fusionkit("fit", store, *again, "--out", out)
    assert ("selectivity" in done.out, done.code) == (True, 0)
    return out


def records_of(runs: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The runs on the real labels."""
    found = [(path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(runs.glob("*/run.json"))]
    assert len(found) == 3
    return [(folder, record) for folder, record in found if not record["spec"]["control"]]


def test_live_answers_about_the_test_split_are_those_over_the_store(
    fusionkit: Command, runs: Path, store: Path, corpus: Path
) -> None:
    done = fusionkit("predict", runs, "--input", corpus / "test.jsonl", "--json")
    assert (done.code, "columns: tokens = tokens" in done.err) == (0, True)
    assert "test.jsonl has labels (" in done.err
    assert "fusionkit evaluate RUN" in done.err
    found = [json.loads(line) for line in done.out.splitlines()]
    sentences = [json.loads(line) for line in (corpus / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(found) == len(sentences) == 30
    opened = open_store(store)
    wanted: dict[str, list[Any]] = {}
    for folder, _ in records_of(runs):
        run = open_run(folder)
        data = load_task(opened, *choose_task(opened, run.spec.task, run.spec.label), run.spec.pool)
        assert data.test is not None
        places = tuple(opened.layers.index(layer) for layer in run.layers)
        wanted[run.spec.label] = predict(run.model, data, data.test, places)
    labels = [line["heads"]["intent"]["label"] for line in found]
    tags = [line["heads"]["slots"]["tags"] for line in found]
    # The store's states are float16: an answer on the edge may fall to the other side.
    assert sum(one == other for one, other in zip(labels, wanted["intent"], strict=True)) >= 29
    assert sum(one == other for one, other in zip(tags, wanted["slots"], strict=True)) >= 29
    assert len(set(labels)) > 2
    for line, sentence in zip(found, sentences, strict=True):
        intent, slots = line["heads"]["intent"], line["heads"]["slots"]
        assert sum(intent["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert intent["label"] == max(intent["probabilities"], key=intent["probabilities"].get)
        assert slots["words"] == sentence["tokens"]
        assert slots["probabilities"] is None
        assert line["cut"] is False
        for span in slots["spans"]:
            assert slots["tags"][span["start"]] in (f"B-{span['type']}", f"I-{span['type']}")
            assert span["text"] == " ".join(sentence["tokens"][span["start"] : span["stop"]])


def standard_input(content: bytes) -> io.TextIOWrapper:
    """Standard input as Python opens it in the locales C, C.UTF-8 and POSIX."""
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="surrogateescape")


def test_texts_and_lines_are_split_into_words_and_shown_in_a_table(
    fusionkit: Command, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["ein Flug nach Oslo", "die Rechnung bitte"]
    done = fusionkit("predict", runs, *texts)
    assert done.code == 0
    assert "split at white space" in done.err
    header, *rows = done.out.splitlines()
    assert header.split()[0] == "text"
    assert {"intent", "slots"} <= set(header.split())
    assert [row.startswith(text) for row, text in zip(rows, texts, strict=True)] == [True, True]
    lines = "\n".join([texts[0], "", texts[1]]) + "\n"
    monkeypatch.setattr("sys.stdin", standard_input(lines.encode("utf-8-sig")))
    assert fusionkit("predict", runs, "--input", "-").out == done.out


def test_standard_input_that_is_not_utf_8_is_one_message(
    fusionkit: Command, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", standard_input(b"ein Flug\ncaf\xe9\n"))
    done = fusionkit("predict", runs, "--input", "-")
    assert (done.code, done.out, "Traceback" in done.err) == (1, "", False)
    assert "standard input is not UTF-8 text" in done.err


def test_more_than_one_pass_over_each_text_is_said(
    fusionkit: Command, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor, said = load(runs), "passes of an encoder over each text"
    monkeypatch.setattr("fusionkit.predict.load", lambda *_, **__: predictor)
    done = fusionkit("predict", runs, "Oslo")
    assert (done.code, said in done.err) == (0, False)
    predictor.passes *= 2
    done = fusionkit("predict", runs, "Oslo")
    assert (done.code, f"2 {said}: runs that trained through it bring one of their own" in done.err) == (0, True)


def test_the_columns_of_a_conll_file_can_be_named(fusionkit: Command, runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "new.conll"
    file.write_text("a b ein c d\na b Flug c d\n\na b Oslo c d\n", encoding="utf-8")
    refused = fusionkit("predict", runs, "--input", file)
    assert (refused.code, "name the columns, e.g. --columns" in refused.err) == (1, True)
    done = fusionkit("predict", runs, "--input", file, "--columns", "_,_,tokens,_,_", "--json")
    assert done.code == 0, done.err
    assert [json.loads(line)["text"] for line in done.out.splitlines()] == ["ein Flug", "Oslo"]


def test_heads_that_fill_the_line_get_a_line_each(
    fusionkit: Command, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusionkit.cli.console.PIPE_WIDTH", 30)
    header, *rows = fusionkit("predict", runs, "Oslo bitte").out.splitlines()
    assert header.split() == ["text", "head", "answer"]
    at = header.index("head")
    assert [name for row in rows if (name := row[at:].split(" ")[0])] == ["intent", "slots"]


def test_a_text_that_begins_like_a_home_folder_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert runs_and_texts([str(tmp_path), "~20 rooms", "Oslo"]) == ([str(tmp_path)], ["~20 rooms", "Oslo"])
    for given in (["~nobody-here/runs", "Oslo"], [str(tmp_path), "~nobody-here/runs", "Oslo"]):
        with pytest.raises(UsageError, match="the home folder of an unknown user"):
            runs_and_texts(given)


def test_only_what_is_no_text_is_looked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetched(place: str) -> Path:
        asked.append(place)
        return tmp_path

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fusionkit.exported.finding.fetched", fetched)
    assert runs_and_texts(["jane/tagger", "a text"]) == (["jane/tagger"], ["a text"])
    with pytest.raises(UsageError, match="argument 2: evil/head holds no finished run") as caught:
        runs_and_texts(["jane/tagger", "evil/head"])
    assert "needs --input" in str(caught.value.remedy)
    assert asked == ["jane/tagger"] * 2
    both = ["jane/tagger", "jane/other"]
    assert runs_and_texts(both, no_texts=True) == (both, [])
    assert asked[2:] == both


def test_text_that_is_too_long_is_said(fusionkit: Command, runs: Path) -> None:
    done = fusionkit("predict", runs, "--json", "Oslo " * 600, "Oslo")
    assert done.code == 0
    assert "1 of 2 texts cut to 512 sub-tokens" in done.err
    assert [json.loads(line)["cut"] for line in done.out.splitlines()] == [True, False]


def test_a_run_on_control_labels_predicts_nothing(fusionkit: Command, runs: Path) -> None:
    [control] = {path.parent for path in runs.glob("*/run.json")} - {folder for folder, _ in records_of(runs)}
    done = fusionkit("predict", control, "Oslo")
    assert (done.code, "learned control labels" in done.err) == (2, True)
    [row] = [row for row in fusionkit("results", runs, "--json").json if row["label"] == "intent"]
    assert row["selectivity"] == pytest.approx(row["mean"] - row["control_score"])
    assert row["controls"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("no-such-runs", "a text"), 2, "holds no finished run"),
        (("RUNS", "no/such/run", "a text"), 2, "holds no finished run"),
        (("RUNS",), 2, "give texts after the runs"),
        (("RUNS", "a text", "--input", "FILE"), 2, "not both"),
        (("RUNS", "--input", "no-such-file"), 2, "no-such-file is no file"),
        (("RUNS", "--input", "EMPTY"), 1, "is empty"),
        (("RUNS", "--input", "FILE", "--tokens", "nowhere"), 2, "unknown column"),
        (("RUNS", "--input", "FILE", "--text", "text"), 2, "trained over words"),
        (("RUNS", "--input", "TEXTS"), 2, "no column of"),
        (("RUNS", "a text", "--text", "text"), 2, "--text names a column of a file"),
        (("RUNS", "a text", "--columns", "word,tag"), 2, "--columns names a column of a file"),
        (("RUNS", "--input", "FILE", "--columns", "word,word"), 2, "--columns names each column once"),
        (("RUNS", "  "), 2, "nothing to predict"),
        (("RUNS", "caf\udce9"), 2, "text 0 cannot be encoded"),
    ],
)
def test_a_mistake_is_one_message(
    fusionkit: Command, runs: Path, corpus: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "texts.jsonl").write_text('{"text": "a room in Oslo"}\n{"text": "two"}\n')
    places = {
        "RUNS": runs, "FILE": corpus / "test.jsonl", "EMPTY": tmp_path / "empty.jsonl",
        "TEXTS": tmp_path / "texts.jsonl",
    }  # fmt: skip
    done = fusionkit("predict", *(places.get(argument, argument) for argument in arguments))
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert "Traceback" not in done.err


def test_heads_are_evaluated_on_a_store_and_on_its_source(
    fusionkit: Command, runs: Path, store: Path, corpus: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.csv"
    stored = fusionkit("evaluate", runs, store, "--errors", wrong, "--json")
    assert stored.code == 0, stored.err
    scores = {each["heads"][0]["label"]: each["scores"] for each in stored.json}
    for _, record in records_of(runs):
        assert scores[record["spec"]["label"]] == pytest.approx(record["scores"]["test"], abs=1e-12)
    told = list(csv.DictReader(io.StringIO(wrong.read_text(encoding="utf-8"))))
    assert len(told) == sum(head["wrong"] for each in stored.json for head in each["heads"])
    assert f"{len(told):,} wrong answers" in stored.err
    live = fusionkit("evaluate", runs, corpus)
    assert live.code == 0, live.err
    assert live.out.splitlines()[0] == "de, test: 30 examples; scores in percent"
    assert [line.split()[0] for line in live.out.splitlines()[1:]] == ["head", "intent", "slots"]


def test_one_head_is_shown_class_by_class_with_its_confusions(
    fusionkit: Command, runs: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for folder, record in records_of(runs):
        label = record["spec"]["label"]
        done = fusionkit("evaluate", folder, store, "--split", "train")
        assert done.code == 0, done.err
        assert f"{label}: {'entity type' if label == 'slots' else 'class'}  " in done.out
        assert f"{label}: gold ↓ predicted →" in done.out
        assert ("wrong boundary" in done.out) == (label == "slots")
        assert max(map(len, done.out.splitlines())) <= 200
        assert "linear fusion, " in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("RUNS",), 2, "evaluate needs RUN|EXPORT…"),
        (("RUNS", "no-such-data.jsonl"), 2, "no such source"),
        (("no-such-runs", "STORE"), 2, "holds no finished run"),
        (("RUNS", "STORE", "--split", "dev"), 2, "unknown split of"),
        (("RUNS", "STORE", "--limit", "3"), 2, "--limit is for a source"),
        (("RUNS", "FILE", "--label", "intent"), 2, "--label names one column for heads of 2"),
        (("RUNS", "FILE", "--label", "intents=x"), 2, "unknown column that these heads learned 'intents'"),
        (("RUNS", "FILE", "--label", "intent", "--label", "slots"), 2, "--label does not say"),
        (("RUNS", "WORDS"), 2, "has no labels of these heads"),
        (("RUNS", "FILE", "--keep"), 2, "--keep is for a store"),
        (("RUNS", "FILE", "--columns", "word,word,tag"), 2, "--columns names each column once"),
    ],
)
def test_a_mistake_in_evaluating_is_one_message(
    fusionkit: Command, runs: Path, store: Path, corpus: Path, tmp_path: Path, arguments: tuple[str, ...], code: int,
    message: str,
) -> None:  # fmt: skip
    (tmp_path / "words.jsonl").write_text('{"tokens": ["ein", "Zimmer"]}\n{"tokens": ["in", "Oslo"]}\n')
    places = {"RUNS": runs, "STORE": store, "FILE": corpus / "test.jsonl", "WORDS": tmp_path / "words.jsonl"}
    done = fusionkit("evaluate", *(places.get(argument, argument) for argument in arguments))
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert "Traceback" not in done.err
