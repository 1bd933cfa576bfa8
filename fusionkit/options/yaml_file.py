"""Options in YAML files: each value is read and checked by its option's entry, and an error names its line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionkit.errors import UsageError, unknown_name
from fusionkit.options.entry import NONE, SWEPT, WANTED, WHOLE, OptionInfo, joined
from fusionkit.options.yaml_texts import Keys

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
    places: dict[Keys, str]

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

    def placed(self, keys: Sequence[str], error: UsageError) -> UsageError:
        """The same error with the place in front."""
        return self.wrong(
            keys, error.what, expected=error.expected, received=error.received, remedy=error.remedy
        )  # fmt: skip

    def checked(self, keys: Sequence[str], read: Callable[[], Any]) -> Any:
        """The result of ``read``; its errors are raised again with the place in front."""
        try:
            return read()
        except UsageError as error:
            raise self.placed(keys, error) from error

    def among(self, keys: Sequence[str], kind: str, name: str, known: Any) -> None:
        """Refuse a name that is not known; the error suggests the nearest one."""
        if name not in known:
            raise self.placed(keys, unknown_name(kind, name, known))


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
        values = [_value(written, place, text, entry, checks.get(flag)) for place, text in placed]
        whole = entry.lists in (SWEPT, WHOLE)
        read[entry.parameter] = tuple(values) if whole else values if len(values) > 1 else values[0]
    return read


def _value(written: YamlNode, at: Keys, text: Any, entry: OptionInfo, check: Callable[[Any], object] | None) -> Any:
    if entry.named and isinstance(text, dict) and all(isinstance(value, str) for value in text.values()):
        text = joined(text)
    try:
        if not isinstance(text, str) or not text.strip():
            raise ValueError
        value = entry.read(text)
    except ValueError:
        raise _wrong_kind(written, at, entry.flag, WANTED[entry.kind], text) from None
    found = written.checked(at, lambda: entry.check(value))
    if check is not None:
        written.checked(at, lambda: check(value))
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
