"""What the README and the first examples of Python say, run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fusionkit.bundled import travel_desk
from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.report.figures import FIGURES
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.study.read import read_comparisons

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TOPS = ("benchmarks", "data", "docs", "pipelines")


def test_the_python_examples_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(str(travel_desk("de")))
    encoder = load_encoder("minilm", device="cpu", words=True)
    encode(source, guess_columns(source), tmp_path / "my.store", EncodeSpec(), encoder)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    reading, training, *_ = re.findall(r"^```python\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(reading, names)
    train, batch = names["train"], names["batch"]
    assert train.hidden_states.shape == (train.row_offsets[-1], 7, 384)
    assert len(train.examples) == 80
    lengths = [train.row_offsets[i + 1] - train.row_offsets[i] for i in (0, 5, 7)]
    assert batch.row_offsets.tolist() == [0, lengths[0], sum(lengths[:2]), sum(lengths)]
    assert tuple(batch.hidden_states.shape) == (sum(lengths), 7, 384)
    exec(training, names)
    assert [record["status"] for record in names["records"]] == ["finished"] * 6


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    pages = [*ROOT.glob("*.md"), *(page for top in TOPS for page in (ROOT / top).rglob("*.md"))]
    found = [(page, *link) for page in pages for link in re.findall(r"\]\(([^)#:\s]*)#?([^):\s]*)\)", prose_of(page))]
    assert len(found) > 300
    headings = {page.resolve(): anchors_of(page) for page in pages}
    assert [
        (page.name, name, anchor)
        for page, name, anchor in found
        if not (file := (page.parent / name if name else page).resolve()).exists()
        or (anchor and file in headings and anchor not in headings[file])
    ] == []


def unfenced(page: Path) -> str:
    """A document without its fenced code."""
    text = page.read_text(encoding="utf-8")
    fences = [line.strip() for line in text.splitlines() if "```" in line]
    # A fence in the middle of a line, or one that nothing closes, makes prose of code, and code of all that follows.
    assert all(fence.startswith("```") and fence.count("```") == 1 for fence in fences), page
    assert len(fences) % 2 == 0, page
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def prose_of(page: Path) -> str:
    """A document without its code."""
    return re.sub(r"`[^`]*`|^ {4}.*$", "", unfenced(page), flags=re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", unfenced(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_first_page_is_short_enough_to_be_read() -> None:
    lines = README.splitlines()
    assert len(lines) <= 90
    assert any(line.startswith("<!-- records") for line in lines[:40])  # a result within the first screen
    assert [line for line in lines if len(line) > 140] == []
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in line.strip("|").split("|")]
    assert [cell for cell in cells if len(cell) > 100] == []


@pytest.mark.parametrize("page", ["README.md", pytest.param("docs/results.md", marks=pytest.mark.soak("products"))])
def test_tables_are_those_of_the_committed_records(page: str, evidence: Any) -> None:
    """`python pipelines/evidence.py --tables` writes them anew."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert evidence.with_tables(text) == text
    assert text.count("<!-- records") == text.count("<!-- end -->") > 0


def test_the_first_table_of_each_study_is_that_of_its_records(evidence: Any) -> None:
    """In place of all tables of the page, which take too long for the gate."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    firsts: dict[str, str] = {}
    for mark in evidence.MARK.finditer(text):
        firsts.setdefault(mark[2], mark[0])
    shown = "\n\n".join(firsts.values())
    assert evidence.with_tables(shown) == shown
    assert len(firsts) == len(list(evidence.RECORDS.glob("*.jsonl"))) - 1  # the first page's are in the README


@pytest.mark.parametrize("page", ["cli", "fusions", "heads", "methods"])
def test_tables_of_options_and_names_are_those_of_the_code(page: str, tables: Any) -> None:
    """`python docs/tables.py` writes them anew."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert tables.with_tables(text) == text
    assert len(tables.MARK.findall(text)) == len(re.findall("<!-- (?:table|options): ", text)) > 0


def test_each_mark_names_a_comparison_and_each_file_of_records_has_a_table(evidence: Any) -> None:
    marks = evidence.marks()
    known = {study: read_comparisons(evidence.STUDIES[study]) for study in {study for study, _ in marks}}
    assert [mark for mark in marks if mark[1] not in known[mark[0]]] == []
    files = sorted(evidence.RECORDS.glob("*.jsonl"))
    assert {path.stem for path in files} <= set(known)  # no study of record without a table
    for path in files:
        head, records = evidence.records_of(path)  # refuses a digest that is not the spec's
        assert path.stem == head["study"]
        study = yaml.safe_load(evidence.STUDIES[path.stem].read_text(encoding="utf-8"))
        assert {record["sweep"] for record in records} <= set(study["sweeps"])


def test_each_picture_of_the_results_is_one_of_records(evidence: Any) -> None:
    """`python pipelines/evidence.py --tables` draws them anew."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    drawn = evidence.PICTURE.findall(text)
    assert len(drawn) == text.count("![") > 0
    for study, figure, sweeps, without, file in drawn:
        assert (evidence.RECORDS / f"{study}.jsonl").is_file()
        assert figure in FIGURES
        written = yaml.safe_load(evidence.STUDIES[study].read_text(encoding="utf-8"))
        assert set(filter(None, sweeps.split(","))) <= set(written["sweeps"])
        assert not without or f'"method":"{without}"' in (evidence.RECORDS / f"{study}.jsonl").read_text(
            encoding="utf-8"
        )
        assert (ROOT / "docs" / file).is_file()
