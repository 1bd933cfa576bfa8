"""``fusionkit export``."""

from __future__ import annotations

from pathlib import Path

import click

from fusionkit.cli.completion import folders
from fusionkit.cli.console import FOLDER, JSON_OPTION, out, print_json
from fusionkit.names import CHOOSERS


@click.command()
@click.argument("run", shell_complete=folders)
@click.option("--to", "folder", required=True, type=FOLDER, help="Folder to write; a new one or an empty one.")
@click.option("--choose-by", type=click.Choice(CHOOSERS), help="What chooses among the runs of a folder.")
@click.option("--with-encoder", is_flag=True, help="Write the whole encoder too, with what was trained of it.")
@click.option("--overwrite", is_flag=True, help="Replace the export that is there.")
@JSON_OPTION
def export(run: str, folder: Path, choose_by: str | None, with_encoder: bool, overwrite: bool, as_json: bool) -> None:
    """Write the head of RUN into a folder that stands alone: config, weights and a model card, without the encoder.

    Of a run that trained through the encoder it holds what was trained of it, too. With --with-encoder it holds the
    whole encoder instead, which transformers loads.

    RUN is a run's folder or the beginning of one. With --choose-by validation it is a folder of runs of one task: the
    setting with the best mean validation score is taken, and of its seeds the best one.
    `fusionkit predict FOLDER` uses it, FusedHead.push_to_hub gives it to the hub.
    """
    from fusionkit.runs.find_run import find_run
    from fusionkit.runs.folder import RunsFolder

    if choose_by is None:
        find_run(run)
    else:
        RunsFolder(Path(run).expanduser()).refuse_empty()
    from fusionkit.exported import export_run  # loads torch

    head = export_run(run, folder, overwrite=overwrite, choose_by=choose_by, with_encoder=with_encoder)
    place = folder.expanduser()
    files = {str(path.relative_to(place)): path.stat().st_size for path in sorted(place.rglob("*")) if path.is_file()}
    if as_json:
        print_json({"folder": str(folder), "run": head.run.digest, "bytes": files})
        return
    spec = head.config["spec"]
    out().print(f"{spec['label']}: {spec['fusion']} + {spec['head']} → {folder}")
    for name, size in files.items():
        out().print(f"  {name:<18} {size / 1e3:,.1f} kB")
