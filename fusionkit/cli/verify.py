"""``fusionkit verify``."""

from __future__ import annotations

from pathlib import Path

import click

from fusionkit.cli.console import JSON_OPTION, Bars, given_store, out, print_json
from fusionkit.errors import StoreError
from fusionkit.store import verify_store


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@JSON_OPTION
def verify(store: Path, as_json: bool) -> None:
    """Read every chunk and file of STORE and compare it with its checksum."""
    manifest = given_store(store).manifest
    total = sum(len(fields["chunks"]) for fields in manifest["splits"].values()) + len(manifest["files"])
    faults, seen = {}, 0
    with Bars() as bars:
        bars.step("verifying", total, 0, "files")
        for checked in verify_store(store):
            seen += 1
            bars.advance(1)
            if checked.fault:
                faults[checked.path] = checked.fault
    if as_json:
        print_json({"store": str(store), "files": seen, "faults": faults})
    if faults:
        lines = "\n".join(f"    {path}: {fault}" for path, fault in faults.items())
        raise StoreError(
            f"{store} is damaged in {len(faults)} of {seen} files:\n{lines}",
            remedy="encode it again (--overwrite), or restore these files",
        )
    if not as_json:
        out().print(f"{store}: all {seen} files are intact")
