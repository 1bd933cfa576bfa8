"""``fusionkit status``."""

from __future__ import annotations

from typing import Any

import click

from fusionkit.cli.console import JSON_OPTION, PLACE, count_table, out, print_json, runs_at
from fusionkit.io.places import Place
from fusionkit.plural import counted


@click.command()
@click.argument("path", type=PLACE)
@JSON_OPTION
def status(path: Place, as_json: bool) -> None:
    """Say what of PATH, a store or a folder of runs, is done, running and failed; from any machine that sees it."""
    if (runs := runs_at(path)) is not None:
        from fusionkit.runs.claims import runs_status
        from fusionkit.runs.folder import RunsFolder

        found, show = runs_status(RunsFolder(runs)), _print_runs
    else:
        from fusionkit.encode.part_records import store_status  # loads zarr

        found, show = store_status(path), _print_store
    if as_json:
        print_json(found)
    else:
        show(found)


def _print_store(found: dict[str, Any]) -> None:
    by = f" by {found['encoder']}" if found["encoder"] else ""
    out().print(f"{found['path']}: {found['state']}{by}")
    fields = {"parts": "parts", "done": "done", "failed": "failed", "tokens_done": "sub-tokens", "tokens": "of"}
    out().print(count_table("split", found["splits"], fields))
    for each in found["failed"]:
        out().print(
            f"{each['split']}-{each['chunk']:05d} failed {counted(each['attempts'], 'time')}, {each['time']}: "
            f"{each['error']}"
        )
    if found["state"] == "unfinished":
        out().print("nobody encodes into it: the same `fusionkit encode` goes on with it")


def _print_runs(found: dict[str, Any]) -> None:
    running = sum(found["running"].values())
    out().print(
        f"{found['path']}: {found['finished']:,} finished, {running:,} running, {len(found['failed']):,} failed"
        + (f", {found['stopped']:,} stopped early" if found["stopped"] else "")
    )
    if found["broken_off"]:
        out().print(f"{counted(found['broken_off'], 'run')} broken off: the same `fusionkit fit` trains them again")
    for who, count in found["running"].items():
        out().print(f"{count:,} by {who}")
    for each in found["failed"]:
        what = f"{each['fusion']} {each['label']} lr {each['lr']:g} seed {each['data_seed']}"
        out().print(f"{each['digest']} {what}: {each['error'].splitlines()[0]}")
