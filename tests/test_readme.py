"""The README's own words, run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusionkit.bundled import travel_desk
from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


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
    assert [link for link in links if not (Path(__file__).parent.parent / link).exists()] == []


def test_the_first_page_is_short_enough_to_be_read() -> None:
    lines = README.splitlines()
    assert len(lines) <= 90
    assert [line for line in lines if len(line) > 140] == []
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in line.strip("|").split("|")]
    assert [cell for cell in cells if len(cell) > 100] == []
