"""``fusionkit demo``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusionkit.cli.console import FOLDER, JSON_OPTION, ProgressBars, out, print_json, table

if TYPE_CHECKING:
    from fusionkit.demo import DemoResult


class FitBars(ProgressBars):
    """A bar over epochs with the best run so far, by validation, behind it."""

    def __init__(self) -> None:
        super().__init__()
        self._best: dict[str, tuple[float, str]] = {}

    def begin(self, runs: int, epochs: int, work: Mapping[str, float]) -> None:
        """The sweep has this many runs left."""
        if runs:
            self.step(f"fitting {runs} run{'s' if runs > 1 else ''}", epochs, 0, "epochs")

    def epoch(self, work: float) -> None:
        """One more epoch of one run is done."""
        self.advance(1)

    def elsewhere(self, record: dict[str, Any]) -> None:
        """Nobody else fits here."""

    def run(self, record: dict[str, Any]) -> None:
        """A run has ended."""
        from fusionkit.metrics import is_better

        spec = record["spec"]
        if record["status"] == "failed":
            self.say(f"failed: {spec['fusion']} lr {spec['lr']} seed {spec['data_seed']}: {record['error']}")
        elif spec["label"] not in self._best or is_better(
            record["metric"], record["validation_score"], self._best[spec["label"]][0]
        ):
            self._best[spec["label"]] = (record["validation_score"], spec["fusion"])
            self.note(f"best for {spec['label']}: {spec['fusion']} {record['validation_score']:.3f}")


@click.command()
@click.option("--keep", type=FOLDER, help="Keep the store and the runs in this folder.")
@JSON_OPTION
def demo(keep: Path | None, as_json: bool) -> None:
    """Encode the bundled corpus with the bundled encoder and compare four fusions on two tasks."""
    from fusionkit.demo import demo as run_demo

    with tempfile.TemporaryDirectory() as temporary, FitBars() as bars:
        result = run_demo(keep or Path(temporary), bars)
    if as_json:
        print_json(
            {
                "encode_seconds": result.encode_seconds,
                "encoder_parameters": result.encoder_parameters,
                "runs": json.loads(result.frame.to_json(orient="records")),  # NaN is no JSON
            }
        )
        return
    _print(result)
    if keep is not None:
        out().print(f"kept in {keep}: try `fusionkit info {keep / 'travel-desk.store'}`")


def _print(result: DemoResult) -> None:
    from fusionkit.cli.format_cells import score_text
    from fusionkit.fit import summarise

    summary = summarise(result.frame, ["label", "fusion", "head"])
    rows = []
    for row in summary.to_dict(orient="records"):
        group = result.frame[(result.frame["label"] == row["label"]) & (result.frame["fusion"] == row["fusion"])]
        fusion, head = int(group["fusion_parameters"].iloc[0]), int(group["head_parameters"].iloc[0])
        share = (fusion + head) / result.encoder_parameters
        score = f"{score_text(row['mean'], row['std'])} {row['metric']}"
        rows.append(
            [
                row["label"],
                row["fusion"],
                score,
                f"{fusion:,}",
                f"{head:,}",
                f"{share:.2%}",
                f"{row['seconds']:.1f}",
            ]
        )
    columns = [("task", "left"), ("fusion", "left")]
    columns += [(name, "right") for name in ("test, 3 seeds", "fusion", "head params", "of encoder", "s/head")]
    console = out()
    console.print(table("travel-desk (English), frozen all-MiniLM-L6-v2", columns, rows))
    total = float(result.frame["seconds"].sum())
    console.print(
        f"\nencoded once in {result.encode_seconds:.1f} s; {len(result.frame)} heads trained over it in {total:.1f} s "
        f"({total / len(result.frame):.1f} s each); the encoder has {result.encoder_parameters:,} parameters"
    )
