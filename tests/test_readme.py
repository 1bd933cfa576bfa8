"""The README's own words, run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean, stdev

import pytest

from fusionkit.bundled import travel_desk
from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(str(travel_desk("de")))
    encoder = load_encoder("minilm", device="cpu", words=True)
    encode(source, guess_columns(source), tmp_path / "my.store", EncodeSpec(), encoder)
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    train, batch = names["train"], names["batch"]
    assert train.hidden_states.shape == (train.row_offsets[-1], 7, 384)  # type: ignore[attr-defined]
    assert len(train.examples) == 80  # type: ignore[attr-defined]
    lengths = [train.row_offsets[i + 1] - train.row_offsets[i] for i in (0, 5, 7)]  # type: ignore[attr-defined]
    assert batch.row_offsets.tolist() == [0, lengths[0], sum(lengths[:2]), sum(lengths)]  # type: ignore[attr-defined]
    assert tuple(batch.hidden_states.shape) == (sum(lengths), 7, 384)  # type: ignore[attr-defined]


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert len(links) >= 6
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_first_page_is_short_enough_to_be_read() -> None:
    lines = README.splitlines()
    assert len(lines) <= 90
    assert [line for line in lines if len(line) > 140] == []
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in line.strip("|").split("|")]
    assert [cell for cell in cells if len(cell) > 100] == []


def test_the_table_is_that_of_the_committed_records() -> None:
    """docs/records/first-page.jsonl has the runs of pipelines/minilm/first-page.yaml."""
    lines = (ROOT / "docs" / "records" / "first-page.jsonl").read_text(encoding="utf-8").splitlines()
    scores: dict[tuple[str, str], list[float]] = {}
    for record in map(json.loads, lines):
        scores.setdefault((record["sweep"], record["spec"]["fusion"]), []).append(100 * record["score"])
    sweeps = ("CoNLL-2003", "ATIS-slots", "SST-2", "TREC-6")
    for fusion in ("last", "linear", "attention", "concat"):
        runs = [scores[sweep, fusion] for sweep in sweeps]
        assert {len(each) for each in runs} == {3}
        [row] = [line for line in README.splitlines() if line.startswith(f"| `{fusion}`")]
        assert row.split(" | ")[2:] == [f"{mean(each):.1f} ± {stdev(each):.1f}" for each in runs[:-1]] + [
            f"{mean(runs[-1]):.1f} ± {stdev(runs[-1]):.1f} |"
        ]
