"""A sweep as a file: the options of ``fusionkit fit`` as YAML, which make the same runs as on the command line.

    store: conll2003.store            # relative to the file; several are trained on together
    seeds: 5
    shots: [8, 32, 128]               # a list is swept over
    runs:                             # blocks share the options above; a block's own options win
      - fusion: [last, linear]
        lr: 2e-3
      - fusion: dwatt
        lr: 5e-4

Keys are named as the options are, values read as the command line reads them (``fusionkit/options/yaml_texts.py``).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionkit.errors import UsageError, unknown_name
from fusionkit.fit.sweep.checks import CHECKS
from fusionkit.fit.sweep.multi import read_tasks
from fusionkit.io.places import place_of
from fusionkit.options.entry import OptionInfo
from fusionkit.options.tables import FIT, STORES
from fusionkit.options.yaml_file import YamlNode, read_options, read_yaml, shown
from fusionkit.options.yaml_texts import Keys

# Options that say where and how a sweep is run, not what it trains.
ELSEWHERE = (
    "sweep", "out", "device", "threads", "workers", "cluster", "cluster-config", "print-job", "retry-failed",
    "save-every", "dry-run", "log-to", "json", "trust-remote-code",
)  # fmt: skip
# Options that exclude each other: one in a block replaces the other of the shared options.
RIVALS = (("seeds", "data_seeds"), ("seeds", "init_seeds"), ("draw", "draw_from"), ("epochs", "max_steps"))
Block = dict[str, Any]


@dataclass(frozen=True)
class SweepFile:
    """The content of a sweep file.

    Attributes:
        stores, evaluate_on: as on the command line: paths are relative to the working directory.
        tasks: the tasks of a list, each with its own store, by parameter.
        blocks: choices of :func:`fusionkit.fit.sweep.grid.expand` by parameter; the sweep has the runs of all blocks.
        cluster: whether the file has settings of a cluster.
    """

    stores: tuple[str, ...]
    evaluate_on: tuple[str, ...]
    blocks: tuple[Block, ...]
    cluster: bool = False
    tasks: tuple[Block, ...] = ()


def read_sweep(path: str | Path) -> SweepFile:
    """Read a file; UsageError for no YAML, a repeated, unknown or misplaced key, or a value of another kind."""
    written = read_yaml(
        Path(path).expanduser(), "sweep", "a YAML file of fit's options", "mend that line; quote values like '-4:'"
    )
    top = dict(written.value)
    cluster = top.pop("cluster", None) is not None  # its settings are read where the cluster is opened
    parts = blocks_of(written, ())
    top.pop("runs", None)
    tasks = read_tasks(written, ("tasks",), top.pop("tasks")) if "tasks" in top else []
    for task in tasks:
        task["store"] = _beside(written.path, task["store"])
    shared = _block(written, (), top, {**FIT, **STORES})
    stores, evaluate_on = (shared.pop(name, ()) for name in ("stores", "evaluate_on"))
    blocks = [overlaid(shared, _block(written, ("runs", str(number)), part, FIT)) for number, part in enumerate(parts)]
    every = tuple(each for block in blocks for each in products(block))
    return SweepFile(stores, evaluate_on, every, cluster, tuple(tasks))


def blocks_of(written: YamlNode, keys: Keys) -> Sequence[dict[str, Any]]:
    """The blocks below ``runs:`` of the sweep at ``keys``; one empty block if there are none."""
    sweep = written.value
    for key in keys:
        sweep = sweep[key]
    parts = sweep.get("runs", [{}])
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise written.wrong(
            (*keys, "runs"),
            "'runs' is a list of blocks",
            expected="one or more blocks of options, each behind a dash",
            received=shown(parts),
            remedy="write `- fusion: …` below it, or leave it out and its options above",
        )
    return parts


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> Block:
    """The choices of both, where those of ``above`` win, also over options that they exclude."""
    gone = {loser for pair in RIVALS for winner, loser in (pair, pair[::-1]) if winner in above and loser not in above}
    return {**{name: value for name, value in below.items() if name not in gone}, **above}


def products(block: Block) -> Iterator[Block]:
    """A block for each combination of the values that are listed for parameters with one value."""
    listed = {name: value for name, value in block.items() if isinstance(value, list)}
    for values in itertools.product(*listed.values()):
        yield {**block, **dict(zip(listed, values, strict=True))}


def _block(written: YamlNode, keys: Keys, block: Mapping[str, Any], known: Mapping[str, OptionInfo]) -> Block:
    for option in block:
        if option not in known:
            raise _misplaced(option, known).at(written.where(*keys, option))
    read = read_options(written, keys, block, known, CHECKS)
    moved = functools.partial(_beside, written.path)
    for name in {entry.parameter for entry in known.values() if entry.place} & read.keys():
        found = read[name]
        read[name] = moved(found) if isinstance(found, str) else tuple(map(moved, found))
    return read


def _beside(file: Path, text: str) -> str:
    """A path taken relative to the file's folder; an address is returned unchanged."""
    place = place_of(text)
    return str(file.parent / place) if isinstance(place, Path) else text


def _misplaced(option: str, known: Mapping[str, OptionInfo]) -> UsageError:
    if option in ELSEWHERE:
        return UsageError(
            f"{option!r} says where or how a sweep is run, not what it is",
            expected="options of what is trained",
            received=option,
            remedy=f"give --{option} on the command line",
        )
    if option in STORES:
        return UsageError(f"{option!r} is one for all runs", received=option, remedy="let it stand above 'runs'")
    return unknown_name("key", option, [*known, *(["runs", "tasks"] if "store" in known else [])])
