"""A sweep as a file: the options of ``fusionkit fit`` as YAML, and the same runs that they make.

    store: conll2003.store            # relative to the file; several are trained on together
    seeds: 5
    shots: [8, 32, 128]               # what a list holds is swept over
    runs:                             # the runs of all blocks; what stands above is shared, a block's own wins
      - fusion: [last, linear]
        lr: 2e-3
      - fusion: dwatt
        lr: 5e-4

Keys are named as the options are, values read as the command line reads them (``fusionkit/yaml_texts.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionkit.errors import UsageError, unknown_name
from fusionkit.places import place_of
from fusionkit.tasks.joint import joined
from fusionkit.yaml_texts import read_texts


@dataclass(frozen=True)
class Key:
    """What an option is to :func:`fusionkit.fit.sweep.grid.expand`.

    Attributes:
        name: its parameter there. kind: how its text is read. list: ``swept`` where the parameter takes several to
            sweep over, ``whole`` where several have one meaning together, ``product`` where it takes one value, so
            that a list makes a sweep of each; ``none`` where a list makes no sense.
        place: True for a path, which is relative to the file. named: True where a block may say it of each task.
    """

    name: str
    kind: Callable[[str], Any] = str
    list: str = "product"
    place: bool = False
    named: bool = False


KEYS: dict[str, Key] = {
    "task": Key("task", named=True),
    "label": Key("label", named=True),
    "fusion": Key("fusions", list="swept"),
    "fusion-layers": Key("fusion_layers", list="swept"),
    "head": Key("head", named=True),
    "pool": Key("pool"),
    "shots": Key("shots", int, "swept"),
    "draw": Key("draw"),
    "draw-from": Key("draw_from", list="none", place=True),
    "seeds": Key("seeds", int, "none"),
    "data-seeds": Key("data_seeds", int, "none"),
    "init-seeds": Key("init_seeds", int, "none"),
    "lr": Key("lrs", float, "swept"),
    "epochs": Key("epochs", int, "swept"),
    "batch-size": Key("batch_sizes", int, "swept"),
    "optimizer": Key("optimizer"),
    "schedule": Key("schedule"),
    "warmup": Key("warmup", float),
    "weight-decay": Key("weight_decay", float),
    "clip-norm": Key("clip_norm", float),
    "dropout": Key("dropout", float),
    "label-smoothing": Key("label_smoothing", float),
    "class-weights": Key("class_weights"),
    "patience": Key("patience", int),
    "validate-on": Key("validate_on"),
    "validate-every": Key("validate_every", int),
    "compute-dtype": Key("compute_dtype"),
    "order": Key("order"),
    "joint-fusion": Key("joint_fusion"),
    "init-from": Key("init_from", list="whole", place=True),
    "init-part": Key("init_part"),
    "freeze": Key("freeze", list="whole"),
}
SHARED: dict[str, Key] = {  # one for all runs: they stand above the blocks
    "store": Key("stores", list="whole", place=True),
    "evaluate-on": Key("evaluate_on", list="whole", place=True),
}
# Where and how it is run, not what it is.
ELSEWHERE = (
    "sweep", "out", "device", "threads", "workers", "cluster", "cluster-config", "print-job", "retry-failed", "dry-run",
    "log-to", "json",
)  # fmt: skip
# Ways to say the same: the one that is given later takes the place of the others.
RIVALS = (("seeds", "data_seeds"), ("seeds", "init_seeds"), ("draw", "draw_from"))
WANTED: dict[Callable[[str], Any], str] = {int: "a whole number", float: "a number", str: "a word"}
Block = dict[str, Any]


@dataclass(frozen=True)
class SweepFile:
    """What a file says.

    Attributes:
        stores, evaluate_on: as they would stand on the command line, from the working directory.
        blocks: choices of :func:`fusionkit.fit.sweep.grid.expand` by parameter; the sweep is the runs of all of them.
        cluster: whether settings of a cluster stand in it, too.
    """

    stores: tuple[str, ...]
    evaluate_on: tuple[str, ...]
    blocks: tuple[Block, ...]
    cluster: bool = False


def read_sweep(path: str | Path) -> SweepFile:
    """Read a file.

    Raises:
        UsageError: it cannot be read, is no YAML, has a key twice, unknown or misplaced, or a value of another kind.
    """
    path = Path(path).expanduser()
    top = _parsed(path)
    cluster = top.pop("cluster", None) is not None  # read by whoever opens it, as the settings that they are
    parts = top.pop("runs", [{}])
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise UsageError(
            f"{path}: 'runs' is a list of blocks",
            expected="one or more blocks of options, each behind a dash",
            received=_shown(parts),
            remedy="write `- fusion: …` below it, or leave it out and its options above",
        )
    shared = read_block(top, {**KEYS, **SHARED}, path, str(path))
    stores, judges = (shared.pop(name, ()) for name in ("stores", "evaluate_on"))
    blocks = [
        overlaid(shared, read_block(part, KEYS, path, f"{path}, block {number} of runs"))
        for number, part in enumerate(parts, 1)
    ]
    return SweepFile(stores, judges, tuple(each for block in blocks for each in products(block)), cluster)


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> Block:
    """Choices with others over them, which win."""
    gone = {loser for pair in RIVALS for winner, loser in (pair, pair[::-1]) if winner in above and loser not in above}
    return {**{name: value for name, value in below.items() if name not in gone}, **above}


def products(block: Block) -> Iterator[Block]:
    """A block for each combination of what was listed for parameters that take one value."""
    listed = {name: value for name, value in block.items() if isinstance(value, list)}
    for values in itertools.product(*listed.values()):
        yield {**block, **dict(zip(listed, values, strict=True))}


def read_block(found: Mapping[str, Any], known: Mapping[str, Key], path: Path, where: str) -> Block:
    """Values by parameter: tuples for those that take several, lists for what makes a product.

    Args:
        found: texts, or lists of them, by option. path: the file; places are relative to its folder. where: what
            errors begin with.

    Raises:
        UsageError: an option that is not ``known``, or a value of another kind.
    """
    read: Block = {}
    for option, value in found.items():
        if option not in known:
            raise _misplaced(option, known, where)
        key = known[option]
        if isinstance(value, list) and (key.list == "none" or not value):
            raise _wrong(where, option, "one value" if key.list == "none" else "a value, or a list of them", value)
        texts: Sequence[Any] = value if isinstance(value, list) else [value]
        values = [_value(text, key, path, where, option) for text in texts]
        if key.list in ("swept", "whole"):
            read[key.name] = tuple(values)
        else:
            read[key.name] = values if len(values) > 1 else values[0]
    return read


def _value(text: Any, key: Key, path: Path, where: str, option: str) -> Any:
    if key.named and isinstance(text, dict) and all(isinstance(value, str) for value in text.values()):
        text = joined(text)
    if not isinstance(text, str) or not text.strip():
        raise _wrong(where, option, WANTED[key.kind], text)
    try:
        value = key.kind(text)
    except ValueError:
        raise _wrong(where, option, WANTED[key.kind], text) from None
    return _from_folder(value, path.parent) if key.place else value


def _from_folder(text: str, folder: Path) -> str:
    """A path as it stands in a file of this folder; addresses are what they are."""
    place = place_of(text)
    return str(folder / place.expanduser()) if isinstance(place, Path) else text


def _misplaced(option: str, known: Mapping[str, Key], where: str) -> UsageError:
    if option in ELSEWHERE:
        return UsageError(
            f"{where}: {option!r} says where or how a sweep is run, not what it is",
            expected="options of what is trained",
            received=option,
            remedy=f"give --{option} on the command line",
        )
    if option in SHARED:
        return UsageError(
            f"{where}: {option!r} is one for all runs", received=option, remedy="let it stand above 'runs'"
        )
    wrong = unknown_name("key", option, [*known, *(["runs"] if "store" in known else [])])
    return UsageError(f"{where}: {wrong.what}", expected=wrong.expected, received=wrong.received, remedy=wrong.remedy)


def _wrong(where: str, option: str, expected: str, received: Any) -> UsageError:
    return UsageError(
        f"{where}: {option!r} has a value of another kind",
        expected=expected,
        received=_shown(received),
        remedy=f"write it as behind --{option}",
    )


def _shown(value: Any) -> str:
    for kind, name in ((list, "list"), (dict, "block")):
        if isinstance(value, kind):
            return f"a {name} of {len(value)}" if value else f"an empty {name}"
    return repr(value) if value else "nothing"


def _parsed(path: Path) -> Block:
    """The file's keys with texts, lists and blocks below them."""
    found, _ = read_texts(path, "sweep", "a YAML file of fit's options", "mend that line; quote values like '-4:'")
    if not isinstance(found, dict):
        raise UsageError(
            f"{path} holds no options",
            expected="a YAML file of fit's options, `fusion: [last, linear]`",
            received=_shown(found),
            remedy="write one option a line",
        )
    return found
