"""``fusionkit estimate``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from fusionkit.cli.console import JSON_OPTION, ProgressBars, count_table, out, print_json, table
from fusionkit.cli.options.encode_options import encoding_options, load_inputs
from fusionkit.plural import counted


@click.command()
@encoding_options
@JSON_OPTION
def estimate(as_json: bool, **options: Any) -> None:
    """Say what encoding SOURCE would cost: rows, bytes, files, time and memory, and what would be cheaper."""
    with ProgressBars() as bars:
        inputs = load_inputs(bars.say, options)
        from fusionkit.encode.estimate import estimate as run_estimate  # loads torch

        found = run_estimate(*inputs)
    if as_json:
        print_json(asdict(found))
        return
    console = out()
    fields = tuple(next(iter(found.splits.values())))
    console.print(count_table("split", found.splits, dict(zip(fields, fields, strict=True))))
    about = "" if found.exact else "about "
    console.print(f"\nrows of {found.rows}: {about}{found.bytes / 1e6:,.0f} MB in {counted(found.files, 'file')}")
    memory = f"{found.memory / 1e6:,.0f} MB of memory"
    console.print(f"about {found.seconds:,.0f} s, if this machine stays as busy as it is now; {memory}\n")
    rows = [[name, f"{size / 1e6:,.0f}", f"{1 - size / found.bytes:.0%}"] for name, size in found.choices.items()]
    console.print(table(None, [("cheaper", "left"), ("MB", "right"), ("saves", "right")], rows))
