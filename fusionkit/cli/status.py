"""``fusionkit status``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fusionkit.cli.console import JSON_OPTION, PLACE, count_table, out, print_json
from fusionkit.errors import UsageError
from fusionkit.io.places import Place, is_there
from fusionkit.plural import counted


@click.command()
@click.argument("path", type=PLACE)
@JSON_OPTION
def status(path: Place, as_json: bool) -> None:
    """Say what of PATH, a store or a folder of runs, is done, running and failed; from any machine that sees it."""
    from fusionkit.runs.claims import runs_status
    from fusionkit.runs.folder import RunsFolder, is_begun
    from fusionkit.store import is_store

    store = is_store(path)
    if not store and not (isinstance(path, Path) and path.is_dir() and is_begun(path)):
        raise UsageError(
            f"{path} is neither a store nor a folder of runs",
            expected="what `fusionkit encode --out` or `fusionkit fit --out` writes",
            received="something else" if is_there(path) else "a path that does not exist",
            remedy="check the path",
        )
    if isinstance(path, Path) and not store:
        found = runs_status(RunsFolder(path))
    else:
        from fusionkit.encode.part_records import store_status  # loads zarr

        found = store_status(path)
    if as_json:
        print_json(found)
    elif store:
        _print_store(found)
    else:
        _print_runs(found)


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
