"""YAML as texts, lists and blocks, each with its line: the files of sweeps and studies.

Values are read as text, as the command line reads them: YAML's own rules would make ``2e-3`` a word, ``2:5`` the number
125 and ``no`` false. Nothing in a file is executed, and no tag creates an object.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fusionkit.errors import UsageError

Keys = tuple[str, ...]  # the path to a value: names of keys, numbers of a list's items from 0
Places = dict[Keys, str]  # for each value ``line 12``
DEEPEST, MOST, MOST_CHARACTERS = 8, 100_000, 1 << 18  # the depth of blocks; the values and characters of a file
DEEPEST_BRACKETS = 100  # brackets within texts are counted too
BRACKETS = {"[": 1, "{": 1, "]": -1, "}": -1}
MERGE = "<<"  # YAML's merge key


def parse_texts(content: str, path: Path, keys: Keys, places: Places) -> Any:
    """The content of YAML at ``keys`` of a file; the places of its values are added to ``places``.

    Raises:
        yaml.YAMLError: it is not YAML. UsageError: a key twice in one block, or more than a file may hold
            (:data:`DEEPEST`, :data:`MOST`, :data:`MOST_CHARACTERS`; an alias counts as what it stands for).
    """
    if len(content) > MOST_CHARACTERS:
        raise _too_much(path, "characters", MOST_CHARACTERS, "write a shorter one")
    # A thousand nested brackets take the parser seconds before it fails, and longer with a higher recursion limit.
    if max(itertools.accumulate(map(BRACKETS.get, content, itertools.repeat(0))), default=0) > DEEPEST_BRACKETS:
        raise _too_deep(str(path))
    try:
        node = yaml.compose(content, Loader=yaml.BaseLoader)
    except RecursionError:
        raise _too_deep(str(path)) from None
    return "" if node is None else _Texts(path, places).plain(node, keys)


@dataclass
class _Texts:
    """The values of a file, with its aliases expanded, within limits: an alias inside its own anchor never ends, and
    nested aliases grow exponentially.
    """

    path: Path
    places: Places
    characters: int = 0
    merging: set[int] = field(default_factory=set)  # the blocks that are being merged

    def plain(self, node: Any, keys: Keys) -> Any:
        where = f"{self.path}, {_line(node)}"
        if len(self.places) > MOST:
            raise _too_much(where, "values", MOST, "use fewer aliases")
        if len(keys) > DEEPEST:
            raise _too_deep(where)
        if self.characters > MOST_CHARACTERS:
            raise _too_much(where, "characters in its values", MOST_CHARACTERS, "use fewer aliases")
        if isinstance(node, yaml.ScalarNode):
            self.characters += len(node.value)
            return str(node.value)
        if isinstance(node, yaml.SequenceNode):
            found = []
            for number, item in enumerate(node.value):
                self.places[*keys, str(number)] = _line(item)
                found.append(self.plain(item, (*keys, str(number))))
            return found
        merged = self._merged([item for key, item in node.value if key.value == MERGE], keys)
        block, names = dict[str, Any](), set[str]()
        for key, item in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "a list or block"
            if name in names:  # YAML would silently keep the last one
                raise UsageError(
                    f"{self.path}, {_line(key)}: {name!r} is given twice in one block",
                    expected="each key once",
                    remedy="make it one, or one list",
                )
            names.add(name)
            if name == MERGE:
                continue
            self.places[*keys, name] = _line(key)
            block[name] = self.plain(item, (*keys, name))
        return merged | block

    def _merged(self, items: list[Any], keys: Keys) -> dict[str, Any]:
        """Keys that a block takes from others by ``<<: *block`` or ``<<: [*block, *block]``; the first block wins."""
        found: dict[str, Any] = {}
        for item in items:
            for block in reversed(item.value if isinstance(item, yaml.SequenceNode) else [item]):
                if not isinstance(block, yaml.MappingNode):
                    raise UsageError(
                        f"{self.path}, {_line(item)}: `<<` takes the keys of another block",
                        expected="<<: *NAME of a block, or a list of such",
                        received="a text" if isinstance(block, yaml.ScalarNode) else "a list",
                    )
                self.characters += 1  # so that nested empty blocks reach the limit too
                if id(block) in self.merging:
                    raise _too_deep(f"{self.path}, {_line(item)}")
                self.merging.add(id(block))
                found |= self.plain(block, keys)
                self.merging.remove(id(block))
        return found


def _too_much(where: object, what: str, most: int, remedy: str) -> UsageError:
    return UsageError(f"{where}: more than {most:,} {what}", expected=f"at most {most:,}", remedy=remedy)


def _too_deep(where: str) -> UsageError:
    what = f"{where}: blocks are nested too deeply"
    return UsageError(what, expected=f"at most {DEEPEST} of them", remedy="write it with fewer")


def _line(node: Any) -> str:
    return f"line {node.start_mark.line + 1}"
