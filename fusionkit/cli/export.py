"""``fusionkit export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fusionkit.cli.console import FOLDER, JSON_OPTION, out, print_json, say_at_once
from fusionkit.cli.options.completion import folders
from fusionkit.errors import UsageError


@click.command()
@click.argument("run", metavar="RUN|RUNS", shell_complete=folders)
@click.option("--to", "folder", required=True, type=FOLDER, help="Folder to write, new or empty.")
@click.option("--best", is_flag=True, help="Take the best run of a folder of runs, by validation.")
@click.option(
    "--by",
    type=click.Choice(["task"]),
    help="With --best: the best run of each task, each in its own folder below --to.",
)
@click.option("--with-encoder", is_flag=True, help="Write the whole encoder too, with what was trained in it.")
@click.option("--overwrite", is_flag=True, help="Replace the export that is there.")
@JSON_OPTION
def export(run: str, folder: Path, best: bool, by: str | None, as_json: bool, **how: bool) -> None:
    """Write the head of RUN into a folder of its own: config, weights and a model card, without the encoder.

    If the run trained through the encoder, the folder also has what was trained in the encoder. With --with-encoder it
    has the whole encoder instead, which transformers loads.

    RUN is a run's folder or the beginning of its name. With --best it is a folder of runs of one task: the best seed of
    the setting with the best mean validation score is taken. With --by task the folder may have runs of several tasks.
    `fusionkit predict FOLDER` uses the head, FusedHead.push_to_hub uploads it to the hub.
    """
    from fusionkit.runs.find_run import find_run
    from fusionkit.runs.folder import RunsFolder

    if by is not None and not best:
        raise UsageError(f"--by {by} chooses nothing without --best", remedy=f"add --best, or leave --by {by} out")
    if best:
        RunsFolder(Path(run).expanduser()).refuse_empty()
    else:
        find_run(run)
    say_at_once(f"exporting {run}")
    from fusionkit.exported import export_best_of_each, export_run  # loads torch

    if by is None:
        heads = {folder: export_run(run, folder, best=best, **how)}
    else:
        heads = {folder / name: head for name, head in export_best_of_each(run, folder, **how).items()}
    told = [_facts(place, head) for place, head in heads.items()]
    if as_json:
        print_json(told[0] if by is None else told)
        return
    for facts, head in zip(told, heads.values(), strict=True):
        spec = head.config["spec"]
        out().print(f"{spec['label']}: {spec['fusion']} + {spec['head']} → {facts['folder']}")
        for name, size in facts["bytes"].items():
            out().print(f"  {name:<18} {size / 1e3:,.1f} kB")


def _facts(folder: Path, head: Any) -> dict[str, Any]:
    files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    return {"folder": str(folder), "run": head.run.digest, "bytes": files}
