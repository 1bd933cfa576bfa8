"""The answers that runs keep: their scores to the last bit, and the same when they are added later."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fusionkit
from fusionkit.errors import StoreError, UsageError
from fusionkit.evaluation.keep import keep_answers
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.io.files import read_json
from fusionkit.runs.folder import ANSWERS, RECORD
from fusionkit.statistics import answer_bytes
from fusionkit.store import Store


def test_answers_are_those_that_were_scored_and_can_be_added_later(
    corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any
) -> None:
    store, runs = corpus_store("words"), RunsFolder(tmp_path / "runs")
    specs = [
        *expand(store, task="tagging", fusions=("last", "linear"), seeds=2, epochs=(1,)),
        *expand(store, task="tagging", head="crf", fusions=("attention",), epochs=(1,)),
    ]
    fit(store, specs, runs, watch)
    kept = {path.parent.name: path.read_bytes() for path in runs.path.glob(f"*/{ANSWERS}")}
    assert {*kept} == {spec.digest for spec in specs}
    for digest in kept:
        record = read_json(runs.path / digest / RECORD)
        [(name, answers)] = runs.answers(digest).items()
        assert name == store.name
        assert answers.scores() == record["scores"]["test"]
        (runs.path / digest / ANSWERS).unlink()
    assert runs.answers(specs[0].digest) == {}
    found = fusionkit.evaluate(runs.path, data=store.path, split="test")
    assert keep_answers(found) == len(specs)
    assert keep_answers(found) == 0
    assert {path.parent.name: path.read_bytes() for path in runs.path.glob(f"*/{ANSWERS}")} == kept
    with pytest.raises(UsageError, match="answers are kept of the test split alone"):
        keep_answers(fusionkit.evaluate(runs.path, data=store.path, split="validation"))
    place = runs.path / specs[0].digest / RECORD
    record = read_json(place)
    record["scores"]["test"]["f1"] += 0.01
    record["tests"] = {}
    place.write_text(json.dumps(record))
    own = [each for each in found if each.run.digest == specs[0].digest]
    with pytest.raises(StoreError, match="does not score on corpus as it did when it was trained"):
        keep_answers(own)
    place.write_text(json.dumps({**record, "scores": {}}))
    with pytest.raises(StoreError, match="has no score on corpus to compare its answers with"):
        keep_answers(own)


def test_answers_that_unpack_to_more_than_any_run_keeps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = answer_bytes.to_text({})
    assert text is not None
    assert answer_bytes.from_text(text) == {}
    monkeypatch.setattr(answer_bytes, "MOST_BYTES", 10_000)
    for raw in (zlib.compress(bytes(100_000)), base64.b64decode(text)[:-1]):
        with pytest.raises(ValueError, match="no kept answers: too long, or cut off"):
            answer_bytes.from_text(base64.b64encode(raw).decode())


def test_no_answers_are_written_that_a_reader_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(answer_bytes.to_bytes({}))
    monkeypatch.setattr(answer_bytes, "MOST_BYTES", size)
    assert answer_bytes.to_text({}) is None
    monkeypatch.setattr(answer_bytes, "MOST_BYTES", size + 1)
    assert (text := answer_bytes.to_text({})) is not None
    assert answer_bytes.from_text(text) == {}
