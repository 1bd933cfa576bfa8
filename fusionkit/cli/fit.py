"""``fusionkit fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pandas as pd
import torch

from fusionkit.cli.console import FOLDER, JSON_OPTION, Bars, out, print_json
from fusionkit.cli.results import summary_table
from fusionkit.cli.sweeping import given_sweep, stores_or_file, sweep_options
from fusionkit.fit import RunsFolder, summarise
from fusionkit.fit import fit as run_fit
from fusionkit.fit.results import flat_record, flat_tests
from fusionkit.metrics import is_better


class FitBars(Bars):
    """A bar over epochs with the best run so far, by validation, behind it."""

    def __init__(self) -> None:
        super().__init__()
        self._best: dict[str, tuple[float, str]] = {}

    def begin(self, runs: int, epochs: int) -> None:
        """The sweep has this many runs left."""
        if runs:
            self.step(f"fitting {runs} run{'s' if runs > 1 else ''}", epochs, 0, "epochs")

    def epoch(self) -> None:
        """One more epoch of one run is done."""
        self.advance(1)

    def run(self, record: dict[str, Any]) -> None:
        """A run has ended."""
        spec = record["spec"]
        if record["status"] == "failed":
            self.say(f"failed: {spec['fusion']} lr {spec['lr']} seed {spec['data_seed']}: {record['error']}")
        elif spec["label"] not in self._best or is_better(
            record["metric"], record["validation_score"], self._best[spec["label"]][0]
        ):
            self._best[spec["label"]] = (record["validation_score"], spec["fusion"])
            self.note(f"best for {spec['label']}: {spec['fusion']} {record['validation_score']:.3f}")


@click.command()
@click.argument("stores", nargs=-1, metavar="STORE[:SHARE]...", callback=stores_or_file)
@click.option("--out", "runs", required=True, type=FOLDER, help="Folder that keeps the runs.")
@sweep_options
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1), help="CPU threads of one run.")
@JSON_OPTION
@click.pass_context
def fit(
    context: click.Context, /, stores: tuple[str, ...], runs: Path, threads: int, as_json: bool, **choices: Any
) -> None:
    """Train late-fusion heads over STORE: every combination of what is given several times.

    The best epoch on validation is kept and scored once on test. Runs that are in the folder already are not
    trained again.

    Several stores are trained on together, of each all of train or a share of it: en.store de.store:5% (or
    de.store:200 for 200 examples). The last one named chooses the epoch and is scored, unless --evaluate-on says
    otherwise: given several times, the first chooses and each is scored.
    """
    # Two threads on products this small win little, and lose much as soon as anything else runs.
    torch.set_num_threads(threads)
    given = given_sweep(context, stores)
    sweep, folder = given.sweep, RunsFolder(runs)
    with FitBars() as bars:
        records = run_fit(given.store, sweep.specs, folder, bars, sweep.starts, sweep.draws)
    if as_json:
        print_json([flat_record(record) for record in records])
        return
    out().print(summary_table(summarise(pd.DataFrame([row for each in records for row in flat_tests(each)]))))
    out().print(f"kept in {runs}; `fusionkit results {runs}` shows all of it")
