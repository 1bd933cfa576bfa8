"""The content of a study's file: texts, lists and blocks, each with its line.

    encoder: roberta-large
    sources:
      sst2: ${data}/sst2          # ${data}: the value of `data:`, or of --set data=…

All values are read as text, as the command line reads them (``fusionkit/options/yaml_texts.py``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fusionkit.errors import UsageError
from fusionkit.options.yaml_file import YamlNode, read_options, read_yaml
from fusionkit.options.yaml_texts import Keys, parse_texts
from fusionkit.study.keys import TOP

HOLE = re.compile(r"\$\{([^}]*)\}")


def read_written(path: Path, settings: Sequence[str] = (), given: Mapping[str, str] | None = None) -> YamlNode:
    """Read a file, apply ``--set KEY.KEY=VALUE`` and replace ``${…}``.

    Args:
        given: further names for ``${…}``, with their values.
    """
    expected = "a YAML file with sources, sweeps and comparisons"
    written = read_yaml(path.expanduser(), "study", expected, "mend that line")
    for setting in settings:
        _set(written, setting)
    return _filled(written, given or {})


def block_at(
    written: YamlNode, keys: Keys, known: Collection[str] | None = None, kind: str = "key", what: str = "",
    expected: str = "keys below it",
) -> dict[str, Any]:  # fmt: skip
    """The block at ``keys``, empty if there is none; a value that is not a block is refused.

    Args:
        known: the keys that it may have, None for any. kind: what errors call such a key. what, expected: for the
            error about a value that is not a block.
    """
    block: Any = written.value
    for key in keys:
        block = block.get(key, {})
    if not isinstance(block, dict):
        raise written.wrong(keys, f"{what or repr(keys[-1])} is no block", expected=expected, received=repr(block))
    if known is not None:
        for key in block:
            written.among((*keys, key), kind, key, known)
    return block


def all_among(written: YamlNode, keys: Keys, kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse a name of the list at ``keys`` that is not known."""
    for number, name in enumerate(names):
        written.among((*keys, str(number)), kind, name, known)


def _set(written: YamlNode, setting: str) -> None:
    """Apply one ``KEY.KEY=VALUE`` to the content of the file; the value is read as YAML."""
    name, equals, text = setting.partition("=")
    keys = tuple(name.split("."))
    if not equals or not all(keys):
        raise UsageError(
            f"--set {setting} sets nothing",
            expected="KEY=VALUE, keys of blocks with dots between them",
            received=setting,
            remedy="write it like --set encoder=roberta-large or --set sweeps.main.seeds=1",
        )
    block: Any = written.value
    for depth, key in enumerate(keys[:-1], 1):
        inner = block.setdefault(key, {}) if isinstance(block, dict) else _item(block, key)
        if not isinstance(inner, (dict, list)):
            raise UsageError(
                f"--set {setting}: {'.'.join(keys[:depth])} is no block",
                received=repr(inner),
                remedy=f"set {'.'.join(keys[:depth])} itself, or write it as a block in {written.path}",
            )
        block = inner
    last = keys[-1]
    if isinstance(block, list) and _item(block, last) is None:
        raise UsageError(f"--set {setting}: there is no item {last}", expected=f"0 to {len(block) - 1}", received=last)
    for known in [known for known in written.places if known[: len(keys)] == keys]:
        del written.places[known]
    try:
        found = parse_texts(text, written.path, keys, {})
    except yaml.YAMLError as error:
        raise UsageError(f"--set {setting}: no value that YAML reads", received=" ".join(str(error).split())) from error
    written.places[keys] = f"--set {name}"
    block[int(last) if isinstance(block, list) else last] = found


def _item(items: Any, number: str) -> Any:
    return items[int(number)] if number.isdecimal() and int(number) < len(items) else None


def _filled(written: YamlNode, given: Mapping[str, str]) -> YamlNode:
    """The same with each ``${…}`` replaced by its value."""
    names = dict(given)

    def fill(value: Any, keys: Keys) -> Any:
        if isinstance(value, dict):
            return {name: fill(item, (*keys, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [fill(item, (*keys, str(number))) for number, item in enumerate(value)]
        for name in HOLE.findall(value):
            if name == "data" and name not in names:
                raise written.wrong(
                    keys,
                    "the folder of data sets is not given",
                    expected="a key `data:` in the study, or --set data=FOLDER",
                    received=value,
                    remedy="add --set data=FOLDER",
                )
            written.among(keys, "name to stand between ${ and }", name, names)
        return HOLE.sub(lambda hole: names[hole[1]], value)

    if written.value.get("data") not in (None, ""):
        data = fill(read_options(written, (), written.value, {"data": TOP["data"]})["data"], ("data",))
        # The path is made absolute. A relative one would be resolved a second time, against the folder of the value
        # that it is filled into.
        names["data"] = str((written.folder_of("data") / Path(data).expanduser()).absolute())
    return YamlNode(written.path, fill(written.value, ()), written.places)
