"""Options in YAML files: each value is read and checked by its option's entry, and an error names its line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fusionkit.errors import UsageError, errors_at, unknown_name
from fusionkit.options.entry import NONE, SWEPT, WANTED, WHOLE, OptionInfo, joined
from fusionkit.options.yaml_texts import MOST_CHARACTERS, Keys, Places, parse_texts

Checks = Mapping[str, Callable[[Any], object]]
NO_CHECKS: Checks = {}


@dataclass(frozen=True)
class YamlNode:
    """The content of a file, with the line of each value.

    Attributes:
        path: the file. value: blocks, lists and texts. places: for each value ``line 12``, or ``--set KEY``.
    """

    path: Path
    value: dict[str, Any]
    places: Places

    def _place(self, keys: tuple[str, ...]) -> str:
        """The place of the innermost of these keys that has one; ``""`` if none has."""
        ends = range(len(keys), 0, -1)
        return next((self.places[keys[:end]] for end in ends if keys[:end] in self.places), "")

    def where(self, *keys: str) -> str:
        """``study.yaml, line 12``."""
        place = self._place(keys)
        return f"{self.path}, {place}" if place else str(self.path)

    def folder_of(self, *keys: str) -> Path:
        """The folder that relative paths under these keys start from: the file's folder, or for --set the working
        directory.
        """
        return Path() if self._place(keys).startswith("--set") else self.path.parent

    def wrong(self, keys: Sequence[str], what: str, **told: Any) -> UsageError:
        return UsageError(f"{self.where(*keys)}: {what}", **told)

    def among(self, keys: Sequence[str], kind: str, name: str, known: Any) -> None:
        """Refuse a name that is not known; the error suggests the nearest one."""
        if name not in known:
            raise unknown_name(kind, name, known).at(self.where(*keys))


def read_yaml(path: Path, kind: str, expected: str, remedy: str) -> YamlNode:
    """The content of a file.

    Args:
        kind: what the file should be. expected, remedy: for the error if the file is not YAML.

    Raises:
        UsageError: no such file, no block of keys, or as :func:`fusionkit.options.yaml_texts.parse_texts`.
    """
    places: Places = {}
    try:
        with path.open(encoding="utf-8") as file:
            value = parse_texts(file.read(MOST_CHARACTERS + 1), path, (), places)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        told = error.strerror if isinstance(error, OSError) else None
        raise UsageError(
            f"{path} is no {kind} that can be read",
            expected=expected,
            received=told or " ".join(str(error).split()),
            remedy="check the path" if isinstance(error, OSError) else remedy,
        ) from error
    if not isinstance(value, dict):
        raise UsageError(
            f"{path} holds no {kind}", expected=expected, received=shown(value), remedy="write one key a line"
        )
    return YamlNode(path, value, places)


def read_options(
    written: YamlNode, keys: Keys, block: Mapping[str, Any], known: Mapping[str, OptionInfo], checks: Checks = NO_CHECKS
) -> dict[str, Any]:
    """Values by parameter: tuples for options that are swept or whole, lists for those that make a product.

    Args:
        keys: the place of the block. known: options by flag; other keys of the block are left out. checks: further
            checks of a flag's value; they raise :class:`UsageError`.

    Raises:
        UsageError: a value that its option cannot have.
    """
    read: dict[str, Any] = {}
    for flag, value in block.items():
        if flag not in known:
            continue
        entry, at, several = known[flag], (*keys, flag), isinstance(value, list)
        if several and (entry.lists == NONE or (not value and entry.lists != WHOLE)):
            raise _wrong_kind(written, at, flag, "one value" if value else "a value, or a list of them", value)
        placed = [((*at, str(number)), text) for number, text in enumerate(value)] if several else [(at, value)]
        values = [_value(written, place, flag, text, entry, checks.get(flag)) for place, text in placed]
        whole = entry.lists in (SWEPT, WHOLE)
        read[entry.parameter] = tuple(values) if whole else values if len(values) > 1 else values[0]
    return read


def _value(
    written: YamlNode, at: Keys, flag: str, text: Any, entry: OptionInfo, check: Callable[[Any], object] | None
) -> Any:
    if entry.named and isinstance(text, dict) and all(isinstance(value, str) for value in text.values()):
        text = joined(text)
    try:
        if not isinstance(text, str) or not text.strip():
            raise ValueError
        value = entry.read(text)
    except ValueError:
        raise _wrong_kind(written, at, flag, WANTED[entry.kind], text) from None
    with errors_at(written.where(*at)):
        found = entry.check(value)
        if check is not None:
            check(value)
    return found


def _wrong_kind(written: YamlNode, at: Keys, flag: str, expected: str, received: Any) -> UsageError:
    return written.wrong(
        at,
        f"{flag!r} has a value of another kind",
        expected=expected,
        received=shown(received),
        remedy="write a value of that kind",
    )


def shown(value: Any) -> str:
    """A short text of the value that was received, for errors."""
    for kind, name in ((list, "list"), (dict, "block")):
        if isinstance(value, kind):
            return f"a {name} of {len(value)}" if value else f"an empty {name}"
    return repr(value) if value else "nothing"
