"""A study's sweeps: blocks of fit's options over named sources; errors in an option have its line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fusionkit.dataset.share import parse_share
from fusionkit.errors import errors_at
from fusionkit.fit.sweep.checks import CHECKS, seed_pairs
from fusionkit.fit.sweep.file import Block, blocks_of, overlaid, products
from fusionkit.fit.sweep.method_choices import refuse_strays
from fusionkit.fit.sweep.multi import read_tasks
from fusionkit.fit.sweep.open_widths import leaves_out
from fusionkit.fit.train.schedule import check_options
from fusionkit.heads import each_head
from fusionkit.options.entry import PRODUCT, options_of
from fusionkit.options.tables import FIT, STORES
from fusionkit.options.yaml_file import YamlNode, read_options
from fusionkit.options.yaml_texts import Keys
from fusionkit.specs import FROZEN, RunSpec
from fusionkit.study.keys import FROM, SWEEP
from fusionkit.study.study import SweepStep
from fusionkit.study.yaml_tree import block_at
from fusionkit.tasks import tasks_of
from fusionkit.tasks.joint import fitting_heads, is_multi

BLOCK = "options of fit below it"
ANY = RunSpec(store="0" * 16, task="classification", label="label", method="full", fusion="last", head="classifier")


def read_sweep_step(
    written: YamlNode, name: str, sources: Mapping[str, object], before: Mapping[str, object]
) -> SweepStep:
    """Read one sweep.

    Args:
        sources: the sources that it may name. before: the sweeps above it, from which it may start.
    """
    keys: Keys = ("sweeps", name)
    top = block_at(written, keys, SWEEP, "key of a sweep", f"sweep {name!r}", BLOCK)
    parts = blocks_of(written, keys)
    own = {key: value for key, value in top.items() if key in FIT}
    every = block_at(
        written, ("fit",), [key for key in FIT if key not in FROM], "option that sweeps can share", expected=BLOCK
    )
    shared = overlaid(_options(written, ("fit",), every, {}), _options(written, keys, own, before))
    blocks: list[Block] = []
    for number, part in enumerate(parts):
        at = (*keys, "runs", str(number))
        for key in part:
            written.among((*at, key), "key of a block of runs", key, FIT)
        for block in products(overlaid(shared, _options(written, at, part, before))):
            with errors_at(written.where(*at)):
                _check_together(block)
            blocks.append(block)
    tasks = read_tasks(written, (*keys, "tasks"), top["tasks"]) if "tasks" in top else []
    for number, task in enumerate(tasks):
        written.among((*keys, "tasks", str(number), "store"), "source", task["store"], sources)
    if tasks and "store" in top:
        raise written.wrong(
            (*keys, "store"), "each of the tasks names its source", expected="`store:` or `tasks:`", received="both"
        )
    named = dict.fromkeys(task["store"] for task in tasks)
    trained = [(name, None) for name in named] or _stores(
        written, (*keys, "store"), top.get("store"), sources, shares=True
    )
    judges = _stores(written, (*keys, "evaluate-on"), top.get("evaluate-on", []), sources, shares=False)
    begins = [each for block in blocks for each in (*block.get("init_from", ()), block.get("draw_from"))]
    return SweepStep(
        name=name,
        parts=tuple(trained),
        judges=tuple(each for each, _ in judges),
        blocks=tuple(blocks),
        begins=tuple(dict.fromkeys(each for each in begins if each is not None)),
        block={**_without_rivals(every, own), **top},
        place=written.where(*keys),
        tasks=tuple(tasks),
    )


def _check_together(block: Mapping[str, Any]) -> None:
    """Refuse a head that does not fit its task, options that its head or its methods cannot use, and a width that
    nothing sets.
    """
    task, head = block.get("task"), block.get("head")
    leaves_out(block)
    refuse_strays(block.get("methods", (FROZEN,)), block)
    seed_pairs(*(block.get(name) for name in ("seeds", "data_seeds", "init_seeds")))
    if is_multi(task):  # their heads are checked with their stores
        return
    if task is not None:
        chosen = fitting_heads(tasks_of(task), head)
    elif head is not None:
        chosen = "+".join(each_head(head))
    else:
        return
    known = options_of(RunSpec)
    plain = [entry.name for entry in FIT.values() if entry == known.get(entry.name) and entry.lists == PRODUCT]
    taken = {name: block[name] for name in plain if name in block}
    check_options(dataclasses.replace(ANY, head=chosen, **taken))


def _without_rivals(every: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The shared options that no option of the sweep overrides."""
    named = [{FIT[option].parameter: option for option in block} for block in (every, own)]
    return {option: every[option] for option in overlaid(*named).values() if option in every and option not in own}


def _options(written: YamlNode, keys: Keys, block: Mapping[str, Any], before: Mapping[str, object]) -> Block:
    """Checked values by parameter; names of sweeps stay names."""
    read = read_options(written, keys, block, {key: entry for key, entry in FIT.items() if key not in FROM}, CHECKS)
    for option in FROM:
        if (value := block.get(option)) is not None:
            names = value if isinstance(value, list) and option == "init-from" else [value]
            for number, each in enumerate(names):
                place = (*keys, option, str(number)) if isinstance(value, list) else (*keys, option)
                written.among(place, "sweep above this one", each if isinstance(each, str) else repr(each), before)
            read[FIT[option].parameter] = tuple(names) if option == "init-from" else value
    return read


def _stores(
    written: YamlNode, keys: Keys, value: Any, sources: Mapping[str, object], shares: bool
) -> list[tuple[str, str | None]]:
    """Names of sources, with the share of each that is trained on."""
    items = value if isinstance(value, list) else [value]
    if shares and (value is None or not items):
        raise written.wrong(
            keys[:-1], "this sweep trains on nothing", expected="`store:` with names of sources", received="none"
        )
    found: list[tuple[str, str | None]] = []
    for number, item in enumerate(items):
        at = (*keys, str(number)) if isinstance(value, list) else keys
        text = item if isinstance(item, str) else repr(item)
        name, colon, share = text.partition(":") if shares else (text, "", "")
        written.among(at, "source", name, sources)
        with errors_at(written.where(*at)):
            found.append((name, parse_share(share) if colon else None))
    return found


def sweep_text(sweep: SweepStep) -> dict[str, Any]:
    """The sweep's content as a file in the study's folder for ``fusionkit fit --sweep``."""

    def store(source: str) -> str:
        return f"../stores/{source}.store"

    def moved(block: Mapping[str, Any]) -> dict[str, Any]:
        """The block with folders of runs in place of names of sweeps."""
        found = dict(block)
        for option in set(FROM) & set(block):
            names = block[option]
            found[option] = [f"../runs/{each}" for each in names] if isinstance(names, list) else f"../runs/{names}"
        return found

    said = {key: value for key, value in moved(sweep.block).items() if key not in (*STORES, "runs", "tasks")}
    whole = [store(name) + (f":{share}" if share else "") for name, share in sweep.parts]
    of_tasks = {"tasks": [{**task, "store": store(task["store"])} for task in sweep.block.get("tasks", ())]}
    judges = {"evaluate-on": [store(name) for name in sweep.judges]} if sweep.judges else {}
    runs = {"runs": [moved(part) for part in sweep.block["runs"]]} if "runs" in sweep.block else {}
    return {**(of_tasks if sweep.tasks else {"store": whole}), **judges, **said, **runs}
