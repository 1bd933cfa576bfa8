"""The options that say what a sweep is, as flags or in a file; flags win over the file's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from fusionkit.cli.completion import files, folders, names
from fusionkit.cli.console import PLACE
from fusionkit.fusions import REGISTRY as FUSIONS
from fusionkit.fusions import fusion_usages
from fusionkit.heads import LM_HEADS
from fusionkit.heads import REGISTRY as HEADS
from fusionkit.names import TASKS
from fusionkit.places import place_of
from fusionkit.registry import Registry
from fusionkit.specs import (
    AUTO,
    CLASS_WEIGHTS,
    DRAWS,
    JOINT_FUSIONS,
    OPTIMIZERS,
    ORDERS,
    PARTS,
    POOLS,
    SCHEDULES,
    TRAINING_DTYPES,
)

if TYPE_CHECKING:
    from fusionkit.dataset.mixture import Mix
    from fusionkit.fit.sweep.blocks import Sweep
    from fusionkit.store import Store

Command = TypeVar("Command", bound=Callable[..., Any])


def importable(registry: Registry) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Refuse a module that is nowhere before torch is loaded and stores are opened."""

    def check(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
        for text in () if given is None else given.split("+") if isinstance(given, str) else given:
            registry.refuse_absent(text)
        return given

    return check


OPTIONS = (
    click.option(
        "--sweep",
        type=click.Path(path_type=Path),
        is_eager=True,
        help="YAML file with the options below; flags win over it.",
    ),
    click.option("--task", shell_complete=names(TASKS), help=f"{', '.join(TASKS)}. [default: by the store's columns]"),
    click.option("--label", help="Column to learn; for joint both: INTENT,SLOTS. [default: guessed]"),
    click.option(
        "--fusion",
        "fusions",
        multiple=True,
        shell_complete=names(fusion_usages()),
        callback=importable(FUSIONS),
        help=f"{', '.join(fusion_usages().values())}, or your own, MODULE:CLASS; several times. "
        "[default: last, linear, concat, attention; of mlm concat-affine for concat]",
    ),
    click.option(
        "--fusion-layers", multiple=True, help="Stored layers to fuse: all, 0,3,6 or -4:. [default: the paper's]"
    ),
    click.option(
        "--head",
        shell_complete=names((*HEADS.names(), *LM_HEADS)),
        callback=importable(HEADS),
        help=f"{', '.join((*HEADS.names(), *LM_HEADS))}, or your own, MODULE:CLASS; for joint two: classifier+crf. "
        "[default: the task's]",
    ),
    click.option(
        "--pool",
        type=click.Choice(POOLS),
        help="Token rows → one vector, after the fusion. [default: as the encoder was trained; over words, mean]",
    ),
    click.option("--shots", multiple=True, type=int, help="Examples per class to draw. [default: all of train]"),
    click.option("--draw", type=click.Choice(DRAWS), default="uniform", show_default=True, help="How shots are drawn."),
    click.option(
        "--draw-from",
        metavar="RUN|RUNS|FILE.json",
        shell_complete=files,
        help="Draw what earlier runs drew, or a list of ids.",
    ),
    click.option("--seeds", type=click.IntRange(min=1), help="Trials 0 … K-1, of both seeds. [default: 1]"),
    click.option("--data-seeds", type=click.IntRange(min=1), help="Seeds of draw and order, each with all of:"),
    click.option("--init-seeds", type=click.IntRange(min=1), help="Seeds of weights and dropout."),
    click.option("--lr", "lrs", multiple=True, type=float, default=(2e-3,), show_default=True),
    click.option("--epochs", multiple=True, type=int, default=(10,), show_default=True),
    click.option("--batch-size", "batch_sizes", multiple=True, type=int, default=(32,), show_default=True),
    click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="adamw", show_default=True),
    click.option("--schedule", type=click.Choice(SCHEDULES), default="linear", show_default=True),
    click.option("--warmup", default=0.0, show_default=True, help="Share of the steps in which the rate rises from 0."),
    click.option("--weight-decay", default=0.0, show_default=True),
    click.option("--clip-norm", type=float, help="Largest norm of the gradient. [default: none]"),
    click.option("--dropout", default=0.0, show_default=True),
    click.option("--label-smoothing", default=0.0, show_default=True),
    click.option("--class-weights", type=click.Choice(CLASS_WEIGHTS), default="none", show_default=True),
    click.option(
        "--patience", type=int, help="Stop after N epochs without a better validation score. [default: never]"
    ),
    click.option(
        "--validate-on", metavar="N|P%", help="Choose the epoch by so much of validation. [default: all of it]"
    ),
    click.option(
        "--validate-every",
        type=int,
        default=1,
        show_default=True,
        metavar="N",
        help="Score validation after each N-th epoch, and after the last.",
    ),
    click.option(
        "--compute-dtype",
        type=click.Choice(TRAINING_DTYPES),
        default="float32",
        show_default=True,
        help="Precision of the products while training; weights and reported scores are float32.",
    ),
    click.option(
        "--order",
        type=click.Choice((AUTO, *ORDERS)),
        default=AUTO,
        show_default=True,
        help="Shuffle all of train, or a window of its chunks at a time. auto: window above 8 GiB in float32.",
    ),
    click.option(
        "--joint-fusion",
        type=click.Choice(JOINT_FUSIONS),
        default="shared",
        show_default=True,
        help="Of joint's two heads.",
    ),
    click.option("--evaluate-on", multiple=True, type=PLACE, help="Store to judge by. [default: the last one named]"),
    click.option(
        "--init-from", multiple=True, shell_complete=folders, help="Finished run to start from, or a folder of such."
    ),
    click.option("--init-part", type=click.Choice(PARTS), help="What to take of it. [default: both]"),
    click.option("--freeze", multiple=True, type=click.Choice(PARTS), help="Part that is not trained."),
)


def stores_or_file(context: click.Context, argument: click.Parameter, stores: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a command line without a store, unless a file may name it."""
    if not stores and context.params.get("sweep") is None:
        raise click.MissingParameter(ctx=context, param=argument)
    return stores


def sweep_options(command: Command) -> Command:
    """Add all options above, in their order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class RequestedSweep:
    """The stores and the sweep that the user asked for; ``cluster_file``: the sweep's, if it has such settings."""

    store: Store | Mix
    sweep: Sweep
    cluster_file: Path | None


def given_sweep(context: click.Context, stores: tuple[str, ...]) -> RequestedSweep:
    """What flags and file ask for together.

    Raises:
        click.MissingParameter: no store anywhere. UsageError: what cannot be read, found or trained.
    """
    from fusionkit.cli.store_arguments import given_stores
    from fusionkit.fit.sweep.blocks import expand_blocks
    from fusionkit.fit.sweep.file import KEYS, SweepFile, overlaid, read_sweep

    values = context.params
    flags = {
        name: value
        for name, value in values.items()
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE
    }
    file = SweepFile((), (), ({},)) if values["sweep"] is None else read_sweep(values["sweep"])
    if not (stores or file.stores):
        [argument] = (param for param in context.command.params if param.name == "stores")
        raise click.MissingParameter(ctx=context, param=argument)
    opened = given_stores(stores or file.stores, values["evaluate_on"] or tuple(map(place_of, file.evaluate_on)))
    chosen = {key.name: flags[key.name] for key in KEYS.values() if key.name in flags}
    sweep = expand_blocks(opened, [overlaid(block, chosen) for block in file.blocks])
    return RequestedSweep(opened, sweep, values["sweep"] if file.cluster else None)
