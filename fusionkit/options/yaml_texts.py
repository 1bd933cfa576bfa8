"""YAML as texts, lists and blocks, each with its line: the files of sweeps and studies.

Values are read as text, as the command line reads them: YAML's own rules would make ``2e-3`` a word, ``2:5`` the number
125 and ``no`` false. Nothing in a file is executed, and no tag creates an object.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fusionkit.errors import UsageError

Keys = tuple[str, ...]  # the way to a value: names of keys, numbers of a list's items from 0
Places = dict[Keys, str]  # of each value ``line 12``
DEEPEST, MOST = 8, 100_000


def read_texts(path: Path, kind: str, expected: str, remedy: str) -> tuple[Any, Places]:
    """The content of a file: blocks, lists and texts, ``""`` for an empty one; and where each of its values stands.

    Args:
        kind: what the file should be; ``expected`` and ``remedy`` are for the error where the file is not YAML.

    Raises:
        UsageError: no such file, no YAML, a key twice in one block, or blocks more than :data:`DEEPEST` deep.
    """
    places: Places = {}
    try:
        return parse_texts(path.read_text(encoding="utf-8"), path, (), places), places
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(
            f"{path} is no {kind} that can be read",
            expected=expected,
            received=" ".join(str(error).split()),
            remedy="check the path" if isinstance(error, OSError) else remedy,
        ) from error


def parse_texts(content: str, path: Path, keys: Keys, places: Places) -> Any:
    """The same of YAML that stands at ``keys`` of a file; the places of its values are added to the known ones.

    Raises:
        yaml.YAMLError: it is none. UsageError: as above.
    """
    node = yaml.compose(content, Loader=yaml.BaseLoader)
    return "" if node is None else _plain(node, path, keys, places)


def _plain(node: Any, path: Path, keys: Keys, places: Places) -> Any:
    # An alias inside what it names has no end, and aliases of aliases are written out: nine of nine of nine …
    if len(places) > MOST:
        raise UsageError(
            f"{path}, {_line(node)}: more than {MOST:,} values",
            expected=f"at most {MOST:,}",
            remedy="use fewer aliases",
        )
    if len(keys) > DEEPEST:
        raise UsageError(
            f"{path}, {_line(node)}: blocks lie too deep in each other",
            expected=f"at most {DEEPEST} of them",
            remedy="write it with fewer",
        )
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if isinstance(node, yaml.SequenceNode):
        found = []
        for number, item in enumerate(node.value):
            places[*keys, str(number)] = _line(item)
            found.append(_plain(item, path, (*keys, str(number)), places))
        return found
    block: dict[str, Any] = {}
    for key, item in node.value:
        name = str(key.value)
        if name in block:  # YAML would keep the last of them and say nothing
            raise UsageError(
                f"{path}, {_line(key)}: {name!r} is given twice in one block",
                expected="each key once",
                remedy="make it one, or one list",
            )
        places[*keys, name] = _line(key)
        block[name] = _plain(item, path, (*keys, name), places)
    return block


def _line(node: Any) -> str:
    return f"line {node.start_mark.line + 1}"
