#!/usr/bin/env python3
"""A picture of where fusions put their weight: one panel a fusion, one line a task, one column a layer.

    pipelines/layer-weights.py RUNS [RUNS …] --out layer-weights.svg [--fusion attention --fusion linear]

A cell is the mean of a layer's weight over the validation rows and over the seeds, as the runs' records have it.
Needs matplotlib (`pip install 'fusionkit[figures]'`).
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import matplotlib.pyplot as plt
import numpy as np

from fusionkit.fit import RunsFolder

# One hue from paper to ink: it reads in grey and to eyes that see few colours.
COLOURS = "Blues"


def weights_by_task(folders: tuple[Path, ...]) -> dict[str, dict[str, np.ndarray]]:
    """Fusion → task → weights ``[layers]``, NaN where the fusion reads no such layer."""
    found: dict[str, dict[str, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
    for record in (record for folder in folders for record in RunsFolder(folder).records()):
        if record.get("layer_weights") is None:
            continue
        row = np.full(max(record["layers"]) + 1, np.nan)
        row[list(record["layers"])] = record["layer_weights"]
        found[record["spec"]["fusion"]][task_of(record)].append(row)
    return {fusion: {task: np.mean(rows, 0) for task, rows in tasks.items()} for fusion, tasks in found.items()}


def task_of(record: dict[str, Any]) -> str:
    """``atis · intent`` with how tokens are pooled, where they are, and whether a pair is two sequences."""
    pool, two = record["spec"]["pool"], " · two" if record.get("sides", 1) == 2 else ""
    return f"{record['data']} · {record['spec']['label']}{two}" + (f" ({pool})" if pool else "")


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--fusion", "fusions", multiple=True, help="Only these, in this order. [default: all]")
def draw(runs: tuple[Path, ...], out: Path, fusions: tuple[str, ...]) -> None:
    """Draw the layer weights of RUNS."""
    weights = weights_by_task(runs)
    shown = [fusion for fusion in fusions or weights if fusion in weights]
    if not shown:
        raise click.UsageError(f"no such fusion has layer weights here: there are {', '.join(weights) or 'none'}")
    tasks = list(dict.fromkeys(task for fusion in shown for task in weights[fusion]))
    layers = max(len(row) for fusion in shown for row in weights[fusion].values())
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    size = (1.9 + columns * (0.42 * layers + 0.3), 0.6 + lines * (0.34 * len(tasks) + 0.75))
    figure, axes = plt.subplots(lines, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axis, fusion in zip(axes.flat, shown, strict=False):
        table = np.full((len(tasks), layers), np.nan)
        for task, row in weights[fusion].items():
            table[tasks.index(task), : len(row)] = row
        axis.imshow(table, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
        axis.set_title(fusion, fontsize=10)
        axis.set_xticks(range(layers))
        axis.set_yticks(range(len(tasks)), tasks, fontsize=9)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        for (line, layer), value in np.ndenumerate(table):
            if np.isfinite(value):
                ink = "white" if value > 0.5 else "black"
                axis.text(
                    layer,
                    line,
                    f"{value:.2f}"[1:] if value < 0.995 else "1",
                    ha="center",
                    va="center",
                    color=ink,
                    fontsize=8,
                )
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    figure.supxlabel("layer (0 is the embedding output)", fontsize=9)
    figure.tight_layout()
    figure.savefig(out, dpi=160)


if __name__ == "__main__":
    draw()
