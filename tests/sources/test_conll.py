"""CoNLL columns: two to four, spaces or tabs; only line ends and blanks separate anything."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from fusionkit.errors import DataError
from fusionkit.sources.conll import read_conll
from fusionkit.sources.spool import spooled


def read(path: Path) -> pa.Table:
    return spooled(read_conll(path), str(path)).head()


def put(folder: Path, content: str) -> Path:
    path = folder / "train.txt"
    path.write_text(content, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize("blank", [" ", "\t", "  "])
@pytest.mark.parametrize("names", [("tokens", "tags"), ("tokens", "pos", "tags"), ("tokens", "pos", "chunk", "tags")])
def test_two_to_four_columns_are_named_by_their_place(tmp_path: Path, names: tuple[str, ...], blank: str) -> None:
    lines = [[f"{name}{i}" for name in names] for i in range(3)]
    first, second, third = (blank.join(line) for line in lines)
    table = read(put(tmp_path, f"{first}\n{second}\n\n{third}\n"))
    assert table.to_pydict() == {name: [[f"{name}0", f"{name}1"], [f"{name}2"]] for name in names}


def test_docstart_lines_and_repeated_blank_lines_end_a_sentence_once(tmp_path: Path) -> None:
    mark = "-DOCSTART- -X- O O"
    lines = (mark, "", "", "EU NNP I-NP I-ORG", "", " \t", mark, "", "in IN I-PP O", mark, "it PRP I-NP O")
    table = read(put(tmp_path, "\n".join(lines)))
    assert table.column("tokens").to_pylist() == [["EU"], ["in"], ["it"]]
    assert table.column("chunk").to_pylist() == [["I-NP"], ["I-PP"], ["I-NP"]]


def test_crlf_a_byte_order_mark_and_blanks_at_the_line_end_do_no_harm(tmp_path: Path) -> None:
    table = read(put(tmp_path, "\ufeffa O \r\nb\tO\t\r\n\r\nc O"))
    assert table.to_pydict() == {"tokens": [["a", "b"], ["c"]], "tags": [["O", "O"], ["O"]]}


@pytest.mark.parametrize("word", ["a\u00a0b", "a\u2028b", "\u2028", "\u0085", "a\x0bb", "a\x0cb", "\u3000", "a\x1cb"])
@pytest.mark.parametrize("blank", [" ", "\t"])
def test_white_space_other_than_blanks_is_part_of_a_word(tmp_path: Path, word: str, blank: str) -> None:
    table = read(put(tmp_path, f"x{blank}O\n{word}{blank}B-y\n"))
    assert table.to_pydict() == {"tokens": [["x", word]], "tags": [["O", "B-y"]]}


def test_a_tab_separated_word_may_hold_spaces(tmp_path: Path) -> None:
    table = read(put(tmp_path, "New York\tB-LOC\n \tO\n"))
    assert table.column("tokens").to_pylist() == [["New York", " "]]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("a O\nb B-x\nc\n", "line 3 has ragged columns"),
        ("a O\n\nb NN O\n", "line 3 has ragged columns"),
        ("a\tO\n\tO\n", "line 2 has ragged columns"),
        ("a\t\tO\n", "one of them empty"),
        ("hello\nworld\n", "line 1 is not a CoNLL line"),
        ("-DOCSTART-\n\nhello\n", "line 3 is not a CoNLL line"),
        ("a b c d e\n", "received: 5 columns"),
        ("-DOCSTART- -X- O O\n\n", "holds no sentence"),
        ("\n\n", "holds no sentence"),
    ],
)
def test_what_is_no_conll_is_refused_with_the_line(tmp_path: Path, content: str, named: str) -> None:
    path = put(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read(path)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)
