"""``fusionkit verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fusionkit.cli.console import JSON_OPTION, PLACE, ProgressBars, given_store, out, print_json, say_at_once, table
from fusionkit.cli.options.heads_options import code_option, device_option
from fusionkit.errors import StoreError, UsageError
from fusionkit.io.places import Place
from fusionkit.plural import counted

if TYPE_CHECKING:
    from fusionkit.encoder import Encoder
    from fusionkit.store import Store


@click.command()
@click.argument("store", type=PLACE)
@click.option("--repair", is_flag=True, help="Encode damaged chunks again, and only those.")
@click.option(
    "--sample", type=click.IntRange(min=1), help="Also encode N examples live and compare them with the stored states."
)
@click.option("--encoder", help="The encoder's folder, if it has moved. [default: as when the store was made]")
@device_option
@code_option
@JSON_OPTION
@click.pass_context
def verify(
    context: click.Context, /, store: Place, repair: bool, sample: int | None, as_json: bool, **how: Any
) -> None:
    """Read every chunk and file of STORE and compare it with its checksum."""
    if not repair and sample is None:
        for name in how:
            if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for loading the encoder",
                    expected="--repair or --sample beside it",
                    received="neither",
                    remedy="add one of them, or leave it out",
                )
    say_at_once(f"opening {store}")
    opened = given_store(store)
    with ProgressBars() as bars:
        seen, faults = _read_all(opened, bars)
        repaired = {}
        if repair and faults:
            repaired, faults = faults, _repair(opened, faults, bars, **how)
            opened = given_store(store)  # its manifest has other checksums now
    differences = []
    if sample is not None and not faults:
        from fusionkit.encode.repair import compare_sample

        differences = compare_sample(opened, _encoder_of(opened, **how), sample)
    if as_json:
        found = {"store": str(store), "files": seen, "faults": faults, "repaired": sorted(repaired)}
        print_json({**found, "sample": [vars(difference) for difference in differences]})
    if faults:
        lines = "\n".join(f"    {path}: {fault}" for path, fault in faults.items())
        raise StoreError(
            f"{store} is damaged in {len(faults)} of {counted(seen, 'file')}:\n{lines}",
            remedy="check the disk, then encode again: `fusionkit encode … --overwrite`"
            if repair
            else "`fusionkit verify --repair` encodes damaged chunks again; for other files use `fusionkit encode … "
            "--overwrite` or a backup",
        )
    if as_json:
        return
    if repaired:
        out().print(f"{store}: {counted(len(repaired), 'chunk')} encoded again: {', '.join(sorted(repaired))}")
    out().print(f"{store}: all {seen} files are intact")
    if sample and differences:
        rows = [[str(d.layer), f"{d.largest:.2e}", f"{d.cosine:.8f}"] for d in differences]
        columns = [("layer", "right"), ("largest difference", "right"), ("smallest cosine", "right")]
        unit = "sequence" if opened.sides == 2 else "example"
        whole = sum(opened[split].sequences for split in opened.splits)
        out().print(table(f"{counted(min(sample, whole), unit)}, stored beside live", columns, rows))


def _read_all(store: Store, bars: ProgressBars) -> tuple[int, dict[str, str]]:
    """The number of files, and the faults by file."""
    from fusionkit.store import verify_store

    arrays = [array for fields in store.manifest["splits"].values() for array in fields["chunks"].values()]
    total = sum(map(len, arrays)) + len(store.manifest["files"])
    bars.step("verifying", total, 0, "files")
    faults, seen = {}, 0
    for checked in verify_store(store.path):
        seen += 1
        bars.advance(1)
        if checked.fault:
            faults[checked.path] = checked.fault
    return seen, faults


def _repair(store: Store, faults: dict[str, str], bars: ProgressBars, **how: Any) -> dict[str, str]:
    """Encode damaged chunks again; returns the faults that are left."""
    from fusionkit.encode.repair import damaged_parts
    from fusionkit.encode.repair import repair as run_repair
    from fusionkit.store import Store

    parts = damaged_parts(store.path, faults)
    loaded = _encoder_of(store, **how)
    bars.step("encoding again", len(parts), 0, "chunks")
    for part in parts:
        for changed in run_repair(store.path, [part], loaded):
            which = f"{changed.split} chunk {changed.chunk}"
            bars.say(f"{which}: some numbers are now rounded differently; its checksum was updated")
        bars.advance(1)
    return _read_all(Store(store.path), bars)[1]


def _encoder_of(store: Store, encoder: str | None, device: str, trust_remote_code: bool) -> Encoder:
    """The encoder that made the store; EncoderError if another one is at the place that the user or the store names."""
    from fusionkit.tuning.encoder import encoder_of

    return encoder_of(
        store.manifest["encoder"]["name"],
        store.manifest["identity"],
        device,
        encoder,
        trust_remote_code=trust_remote_code,
        wanted=f"the one that made {store.path}",
        remedy="name the encoder that made it with --encoder",
    )
