"""A study's sweeps: blocks of fit's options over sources by their names, each option checked where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusionkit.dataset.share import parse_share
from fusionkit.fit.sweep.file import CHECKS, Block, overlaid, parts_of, products
from fusionkit.options.tables import FIT, STORES
from fusionkit.options.yaml_file import YamlNode, read_options
from fusionkit.options.yaml_texts import Keys
from fusionkit.study.keys import FROM, SWEEP
from fusionkit.study.option_checks import check_together
from fusionkit.study.study import SweepStep
from fusionkit.study.yaml_tree import block_at

BLOCK = "options of fit below it"


def read_sweep_step(
    written: YamlNode, name: str, sources: Mapping[str, object], before: Mapping[str, object]
) -> SweepStep:
    """One sweep.

    Args:
        sources: those that it may name. before: the sweeps above it, which it may begin from.

    Raises:
        UsageError: a key, name or value that cannot be meant; the error says where.
    """
    keys: Keys = ("sweeps", name)
    top = block_at(written, keys, SWEEP, "key of a sweep", f"sweep {name!r}", BLOCK)
    parts = parts_of(written, keys)
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
            written.checked(at, lambda block=block: check_together(block))  # type: ignore[misc]
            blocks.append(block)
    trained = _stores(written, (*keys, "store"), top.get("store"), sources, shares=True)
    judges = _stores(written, (*keys, "evaluate-on"), top.get("evaluate-on", []), sources, shares=False)
    begins = [each for block in blocks for each in (*block.get("init_from", ()), block.get("draw_from"))]
    return SweepStep(
        name,
        tuple(trained),
        tuple(each for each, _ in judges),
        tuple(blocks),
        tuple(dict.fromkeys(each for each in begins if each is not None)),
        {**_without_rivals(every, own), **top},
        written.where(*keys),
    )


def _without_rivals(every: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The shared options that a sweep's own do not take the place of."""
    named = [{FIT[option].parameter: option for option in block} for block in (every, own)]
    return {option: every[option] for option in overlaid(*named).values() if option in every and option not in own}


def _options(written: YamlNode, keys: Keys, block: Mapping[str, Any], before: Mapping[str, object]) -> Block:
    """Values by parameter, each checked; names of sweeps stay names."""
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
        found.append((name, written.checked(at, lambda s=share: parse_share(s)) if colon else None))  # type: ignore[misc]
    return found


def sweep_text(sweep: SweepStep, store_of: Mapping[str, str], runs_of: Mapping[str, str]) -> dict[str, Any]:
    """The sweep as a file that ``fusionkit fit --sweep`` takes.

    Args:
        store_of, runs_of: places by the names of sources and sweeps.
    """

    def moved(block: Mapping[str, Any]) -> dict[str, Any]:
        return {key: _renamed(value, runs_of) if key in FROM else value for key, value in block.items()}

    said = {key: value for key, value in moved(sweep.block).items() if key not in (*STORES, "runs")}
    whole = [store_of[name] + (f":{share}" if share else "") for name, share in sweep.parts]
    judges = {"evaluate-on": [store_of[name] for name in sweep.judges]} if sweep.judges else {}
    runs = {"runs": [moved(part) for part in sweep.block["runs"]]} if "runs" in sweep.block else {}
    return {"store": whole, **judges, **said, **runs}


def _renamed(value: Any, places: Mapping[str, str]) -> Any:
    return [places[each] for each in value] if isinstance(value, list) else places[value]
