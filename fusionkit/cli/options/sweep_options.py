"""The options of a sweep, as flags or in a file; flags override the file's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fusionkit.cli.console import PLACE, given_share, given_store, log
from fusionkit.cli.options.completion import files, folders, names
from fusionkit.cli.options.flags import flags, with_all
from fusionkit.errors import UsageError
from fusionkit.fusions import REGISTRY as FUSIONS
from fusionkit.heads import LM_HEADS
from fusionkit.heads import REGISTRY as HEADS
from fusionkit.io.places import place_of
from fusionkit.lazy import uncollected
from fusionkit.methods.table import REGISTRY as METHODS
from fusionkit.names import TASKS
from fusionkit.options.tables import FIT, STORES
from fusionkit.plural import counted
from fusionkit.specs import FROZEN, MULTI

if TYPE_CHECKING:
    from fusionkit.dataset.stores import Stores
    from fusionkit.fit.sweep.blocks import Sweep


HEAD_NAMES = (*HEADS.names(), *LM_HEADS)
TRAINING = [usage for name, usage in METHODS.usages.items() if name != FROZEN]
# Help and completion of options beyond their entries.
MORE: dict[str, dict[str, Any]] = {
    "task": {"shell_complete": names((*TASKS, MULTI))},
    "fusion": {
        "shell_complete": names(FUSIONS.usages),
        "help": FIT["fusion"].help.replace("A fusion", ", ".join(FUSIONS.usages.values()), 1),
    },
    "head": {
        "shell_complete": names(HEAD_NAMES),
        "help": FIT["head"].help.replace("A head", ", ".join(HEAD_NAMES), 1),
    },
    "method": {
        "shell_complete": names(METHODS.usages),
        "help": FIT["method"].help.replace("a method", ", ".join(TRAINING), 1),
    },
    "draw-from": {"shell_complete": files},
    "init-from": {"shell_complete": folders},
    "evaluate-on": {"type": PLACE},
}
sweep_options = with_all([
    click.option(
        "--sweep",
        type=click.Path(path_type=Path),
        is_eager=True,
        help="YAML file with the options below; flags win over it.",
    ),
    *flags((*FIT.values(), STORES["evaluate-on"]), MORE),
])  # fmt: skip


def stores_or_file(context: click.Context, argument: click.Parameter, stores: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a command line without a store, unless a file may name it."""
    if not stores and context.params.get("sweep") is None:
        raise click.MissingParameter(ctx=context, param=argument)
    return stores


def given_sweep(context: click.Context, stores: tuple[str, ...]) -> tuple[Stores, Sweep, Path | None]:
    """The sweep of flags and file: its stores, the sweep, and the file's path if that has a cluster's settings."""
    from fusionkit.fit.sweep.checks import check_choices
    from fusionkit.fit.sweep.file import SweepFile, overlaid, read_sweep
    from fusionkit.runs.find_run import find_run

    values = context.params
    file = SweepFile((), (), ({},)) if values["sweep"] is None else read_sweep(values["sweep"])
    if file.tasks and (stores or file.stores):
        raise UsageError(
            "a sweep's stores are those of its tasks, or those that are named beside them",
            expected="one of the two",
            received=f"{counted(len(file.tasks), 'task')} and {', '.join(stores or file.stores)}",
            remedy="leave the stores out",
        )
    if not (stores or file.stores or file.tasks):
        [argument] = (param for param in context.command.params if param.name == "stores")
        raise click.MissingParameter(ctx=context, param=argument)
    chosen = {
        entry.parameter: values[entry.parameter]
        for entry in FIT.values()
        if context.get_parameter_source(entry.parameter) == ParameterSource.COMMANDLINE
    }
    check_choices(chosen)
    blocks = [overlaid(block, chosen) for block in file.blocks]
    for run in {run for block in blocks for run in block.get("init_from", ())}:
        find_run(run)
    if not values["print_job"]:
        named = stores or file.stores or [task["store"] for task in file.tasks]
        log().print(f"training over {', '.join(named)}, into {values['runs']}")
    judges = values["evaluate_on"] or map(place_of, file.evaluate_on)
    shares = [given_share(text) for text in stores or file.stores]
    tasks = [(task, given_store(place_of(task["store"]), planned=True)) for task in file.tasks]
    with uncollected(for_good=True):
        from fusionkit.fit.sweep.blocks import expand_blocks  # loads torch
        from fusionkit.fit.sweep.multi import opened

    trained, blocks = opened(shares, [given_store(place, planned=True) for place in judges], blocks, tasks)
    sweep = expand_blocks(trained, blocks)
    return trained, sweep, values["sweep"] if file.cluster else None
