"""YAML's merge key: a block takes keys of others, its own count, and a mistake has its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusionkit.errors import UsageError
from fusionkit.options.yaml_file import YamlNode, read_yaml


def read(content: str, folder: Path) -> YamlNode:
    (folder / "file.yaml").write_text(content)
    return read_yaml(folder / "file.yaml", "study", "YAML", "mend it")


def test_a_block_takes_keys_of_others_and_its_own_count(tmp_path: Path) -> None:
    written = read("a: &a {x: 1, y: [2]}\nb: &b {y: 3, z: 4}\nc: {z: 5, <<: [*a, *b]}\nd:\n  <<: *b\n", tmp_path)
    value, places = written.value, written.places
    assert value["c"] == {"x": "1", "y": ["2"], "z": "5"}  # of two blocks the first counts
    assert value["d"] == value["b"]
    assert places["c", "x"] == "line 1"  # where it is written
    assert places["c", "z"] == "line 3"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a: 1\nb: {<<: text}\n", "line 2: `<<` takes the keys of another block"),
        ("a: &a {x: 1}\nb: &b {x: 2}\nc:\n  <<: *a\n  <<: *b\n", "line 5: '<<' is given twice in one block"),
        ("a: &a [1]\nb: {<<: [*a]}\n", "line 2: `<<` takes the keys of another block"),
        ("a: &a {b: 1, <<: *a}\n", "line 1: blocks are nested too deeply"),
        ("a: &a {b: {<<: *a}}\n", "too deep"),
        (
            "a: &a {}\n"
            + "".join(
                f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 30)}]}}\n"
                for old, new in zip("abcdef", "bcdefg", strict=True)
            ),
            "use fewer aliases",
        ),
    ],
)
def test_a_mistake_is_told_by_its_line(content: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(content, tmp_path)
    assert says in str(caught.value)
