"""``fusionkit plan``."""

from __future__ import annotations

from dataclasses import asdict

import click

from fusionkit.cli.console import JSON_OPTION, out, print_json, table
from fusionkit.cli.options.heads_options import code_option
from fusionkit.errors import UsageError


@click.command()
@click.option("--tasks", type=click.IntRange(min=1), required=True, help="Number of tasks over one encoder.")
@click.option("--encoder", default="minilm", show_default=True, help="'minilm', a folder or a hub id.")
@click.option("--method", "methods", multiple=True, help="A method to count; several times. [default: the papers']")
@click.option("--fusion", help="With --method: the fusion of each task. [default: last]")
@click.option(
    "--budget-per-task",
    "budget",
    type=click.IntRange(min=1),
    metavar="N",
    help="For methods given without a number, like pals: the largest size with at most N weights per task. "
    "[default: the papers' sizes]",
)
@code_option
@JSON_OPTION
def plan(
    tasks: int,
    encoder: str,
    methods: tuple[str, ...],
    fusion: str | None,
    budget: int | None,
    trust_remote_code: bool,
    as_json: bool,
) -> None:
    """Count the weights of several tasks over one encoder, method by method; only its config.json is read."""
    from fusionkit.fit.sweep.open_widths import refuse_idle

    if fusion is not None and not methods:
        raise UsageError(
            "--fusion is what each task has on top of a method",
            expected="a --method with it",
            received=f"--fusion {fusion} alone",
            remedy=f"name one: --method full --fusion {fusion}",
        )
    fusion = fusion or "last"
    if methods:
        refuse_idle([{"methods": methods, "fusions": (fusion,), "budget_per_task": budget}])
    from fusionkit.tuning.weights_plan import WeightsPlan  # loads torch and transformers

    found = WeightsPlan(encoder, tasks, trust_remote_code)
    rows = [found.of(method, fusion, budget=budget) for method in methods] or found.usual(budget)
    if as_json:
        print_json([{**asdict(row), "bytes_per_task": row.bytes_per_task} for row in rows])
        return
    columns = [
        ("", "left"), ("method + fusion", "left"), ("weights a task", "right"), (f"weights of {tasks}", "right"),
        ("× encoder", "right"),
    ]  # fmt: skip
    cells = [
        [row.kind, f"{row.method} + {row.fusion}", f"{row.per_task:,}", f"{row.total:,}", f"{row.multiple:.3f}"]
        for row in rows
    ]
    out().print(table(f"{encoder}: {found.encoder:,} weights, {found.depth} layers of {found.hidden}", columns, cells))
    out().print("a weight takes 4 bytes; heads are not counted; a fusion other than last is each task's own")
    if budget and not methods:
        out().print("methods without a width within the budget are left out")
