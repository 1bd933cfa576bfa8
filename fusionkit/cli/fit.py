"""``fusionkit fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pandas as pd
import torch

from fusionkit.cli.console import FOLDER, JSON_OPTION, PLACE, out, print_json
from fusionkit.cli.live import SweepTable
from fusionkit.cli.results import summary_table
from fusionkit.cli.sharing import given_stores
from fusionkit.cli.working import print_forecast, stopped_by_sigterm, working_options
from fusionkit.fit import RunsFolder, expand, foresee, summarise
from fusionkit.fit import fit as run_fit
from fusionkit.fit.results import flat_record, flat_tests
from fusionkit.fit.starting import open_starts
from fusionkit.fusions import FUSIONS, usage
from fusionkit.heads import HEADS, LM_HEADS
from fusionkit.places import Place
from fusionkit.specs import CLASS_WEIGHTS, JOINT_FUSIONS, MASKED, OPTIMIZERS, PARTS, POOLS, SCHEDULES
from fusionkit.tasks import TASKS

DEFAULT_FUSIONS = ("last", "linear", "concat", "attention")
WIDTH_KEEPING = ("last", "linear", "concat-affine", "attention")  # what an encoder's LM head can read
_FUSIONS = ", ".join(usage(name, fusion) for name, fusion in FUSIONS.items())


@click.command()
@click.argument("stores", nargs=-1, required=True, metavar="STORE[:SHARE]...")
@click.option("--out", "runs", required=True, type=FOLDER, help="Folder that keeps the runs.")
@click.option("--task", help=f"{', '.join(TASKS)}. [default: by the store's columns]")
@click.option("--label", help="Column to learn; for joint both: INTENT,SLOTS. [default: guessed]")
@click.option("--fusion", "fusions", multiple=True, help=f"{_FUSIONS}; give it several times.")
@click.option("--fusion-layers", multiple=True, help="Stored layers to fuse: all, 0,3,6 or -4:. [default: the paper's]")
@click.option("--head", help=f"{', '.join((*HEADS, *LM_HEADS))}; for joint two: classifier+crf. [default: the task's]")
@click.option("--pool", type=click.Choice(POOLS), help="Token rows → one vector, after the fusion.")
@click.option("--shots", multiple=True, type=int, help="Examples per class, drawn uniformly. [default: all]")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(min=1), help="Trials 0 … K-1.")
@click.option("--lr", "lrs", multiple=True, type=float, default=(2e-3,), show_default=True)
@click.option("--epochs", multiple=True, type=int, default=(10,), show_default=True)
@click.option("--batch-size", "batch_sizes", multiple=True, type=int, default=(32,), show_default=True)
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="adamw", show_default=True)
@click.option("--schedule", type=click.Choice(SCHEDULES), default="linear", show_default=True)
@click.option("--warmup", default=0.0, show_default=True, help="Share of the steps in which the rate rises from 0.")
@click.option("--weight-decay", default=0.0, show_default=True)
@click.option("--clip-norm", type=float, help="Largest norm of the gradient. [default: none]")
@click.option("--dropout", default=0.0, show_default=True)
@click.option("--label-smoothing", default=0.0, show_default=True)
@click.option("--class-weights", type=click.Choice(CLASS_WEIGHTS), default="none", show_default=True)
@click.option("--patience", type=int, help="Stop after N epochs without a better validation score. [default: never]")
@click.option(
    "--joint-fusion",
    type=click.Choice(JOINT_FUSIONS),
    default="shared",
    show_default=True,
    help="Of joint's two heads.",
)
@click.option("--evaluate-on", multiple=True, type=PLACE, help="Store to judge by. [default: the last one named]")
@click.option("--init-from", multiple=True, help="Finished run to start from, or a folder of such.")
@click.option("--init-part", type=click.Choice(PARTS), help="What to take of it. [default: both]")
@click.option("--freeze", multiple=True, type=click.Choice(PARTS), help="Part that is not trained.")
@working_options
@JSON_OPTION
def fit(
    stores: tuple[str, ...],
    runs: Path,
    fusions: tuple[str, ...],
    fusion_layers: tuple[str, ...],
    shots: tuple[int, ...],
    evaluate_on: tuple[Place, ...],
    init_from: tuple[str, ...],
    freeze: tuple[str, ...],
    threads: int,
    workers: int | None,
    retry_failed: bool,
    dry_run: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Train late-fusion heads over STORE: every combination of what is given several times.

    The best epoch on validation is kept and scored once on test. Runs that are in the folder already are not
    trained again, killed or stopped it goes on where it was, and several of this command on one folder share the runs.

    Several stores are trained on together, of each all of train or a share of it: en.store de.store:5% (or
    de.store:200 for 200 examples). The last one named chooses the epoch and is scored, unless --evaluate-on says
    otherwise: given several times, the first chooses and each is scored.
    """
    # Two threads on products this small win little, and lose much as soon as anything else runs.
    torch.set_num_threads(threads)
    opened, starts = given_stores(stores, evaluate_on), open_starts(init_from)
    specs = expand(
        opened,
        fusions=fusions or (WIDTH_KEEPING if opened.rows == MASKED else DEFAULT_FUSIONS),
        fusion_layers=fusion_layers or (None,),
        shots=shots or (None,),
        starts=starts,
        freeze=(freeze[0] if len(set(freeze)) == 1 else "both") if freeze else None,
        **choices,
    )
    folder = RunsFolder(runs)
    if dry_run:
        print_forecast(*foresee(opened, specs, folder, starts, workers, retry_failed), as_json)
        return
    there = [record for spec in specs if (record := folder.record(spec)) is not None]
    there = [record for record in there if not (retry_failed and record["status"] == "failed")]
    with stopped_by_sigterm(), SweepTable(specs, there) as progress:
        records = run_fit(opened, specs, folder, progress, starts, workers, retry_failed)
    if as_json:
        print_json([flat_record(record) for record in records])
        return
    out().print(summary_table(summarise(pd.DataFrame([row for each in records for row in flat_tests(each)]))))
    out().print(f"kept in {runs}; `fusionkit results {runs}` shows all of it")
