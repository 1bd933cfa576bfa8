"""``fusionkit run``."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusionkit.cli.console import FOLDER, JSON_OPTION, clock, log, out, print_json, table
from fusionkit.cli.options.heads_options import code_option
from fusionkit.cli.options.work_options import cluster_options, given_cluster, print_slurm_job, working_options
from fusionkit.errors import FusionkitError, UsageError
from fusionkit.plural import counted
from fusionkit.printable import as_word

if TYPE_CHECKING:
    from fusionkit.study import Study
    from fusionkit.study.folder import StudyFolder
    from fusionkit.study.forecast import StepForecast


def print_schema(context: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print the JSON schema of a study's file and end, whatever else is asked for."""
    if asked:
        from fusionkit.study.schema import study_schema

        click.echo(json.dumps(study_schema(), indent=1, ensure_ascii=False))
        context.exit()


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--out", "work", required=True, type=FOLDER, help="Folder for stores, runs, tables and figures.")
@click.option("--set", "settings", multiple=True, metavar="KEY.KEY=VALUE", help="Override a value of the file.")
@click.option("--only", multiple=True, metavar="SWEEP", help="Run only this sweep and what it needs; several times.")
@click.option("--known", multiple=True, metavar="FILE", type=click.Path(path_type=Path),
              help="Take runs that have a record in this file as done; several times.")  # fmt: skip
@click.option("--device", default="auto", show_default=True, help="Device of encoder and heads: auto, cpu or cuda:0.")
@code_option
@click.option("--schema", is_flag=True, is_eager=True, expose_value=False, callback=print_schema,
              help="Print the JSON schema of a study for editors, and end.")  # fmt: skip
@working_options
@cluster_options
@JSON_OPTION
def run(
    study: Path,
    work: Path,
    settings: tuple[str, ...],
    only: tuple[str, ...],
    known: tuple[Path, ...],
    workers: int | None,
    dry_run: bool,
    cluster: str | None,
    cluster_config: Path | None,
    print_job: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Take a study from its sources to tables, figures and a page: encode, fit, compare, draw.

    STUDY is a YAML file. A step is done only if its result is missing or its inputs have changed, so a stopped command
    goes on when it is run again.
    """
    from fusionkit.logs import check_logs
    from fusionkit.runs.records_file import known_runs
    from fusionkit.study import read_study

    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError(
            "torchrun shares one run of `fit`, and a study has steps of many kinds",
            expected="one process, which starts others itself",
            received="torchrun",
            remedy="start fusionkit without torchrun",
        )
    check_logs(how["log_to"])
    found = read_study(study, settings, only)
    where = given_cluster(cluster, cluster_config, how["device"], workers, found)
    if print_job:
        print_slurm_job(where)
        return
    done_before = known_runs(path.expanduser() for path in known)
    log().print(
        f"{found.title}: {counted(len(found.sources), 'source')}, {counted(len(found.sweeps), 'sweep')}, "
        f"{counted(len(found.comparisons), 'table')}, in {work}"
    )
    from fusionkit.cli.commands import CliCommands  # loads torch
    from fusionkit.runs.folder import RunsFolder
    from fusionkit.runs.record import first_error
    from fusionkit.study.folder import Ledger, StudyFolder
    from fusionkit.study.forecast import forecast_study
    from fusionkit.study.run import run_study

    commands = CliCommands(where, workers, **how)
    place = StudyFolder(work)
    if dry_run:
        print_plan(found.title, forecast_study(found, place, commands, done_before), as_json)
        return
    done = []
    for each in run_study(found, place, commands, shlex.join(["fusionkit", *sys.argv[1:]]), done_before):
        log().print(f"{each.step}: " + (f"done in {clock(each.seconds)}" if each.made else "there already"))
        done.append({"step": each.step, "made": each.made, "seconds": round(each.seconds, 3)})
    ledger = Ledger(place)
    failed = [name for name in found.sweeps if (ledger.step(f"fit {name}") or {}).get("all_failed")]
    if as_json:
        print_json(done)
    else:
        print_made(found, place, done)
    if failed:
        runs = place.runs(failed[0])
        raise FusionkitError(
            f"no run of sweep {', '.join(failed)} finished: the study's other results are there",
            received=first_error(RunsFolder(runs).all_records()),
            remedy=f"`fusionkit status {as_word(runs)}` lists the errors; --retry-failed tries them again",
        )


def print_made(found: Study, place: StudyFolder, done: list[dict[str, Any]]) -> None:
    """Say what a study has made, and where it lies."""
    made = sum(bool(each["made"]) for each in done)
    out().print(f"{place.path}: {made} of {counted(len(done), 'step')} done now, {len(done) - made} there already")
    pages = [place.table(name, "md") for name in found.comparisons]
    for page in [*pages, *([] if found.report is None else [place.report])]:
        if page.is_file():
            out().print(f"  {page}")


def print_plan(title: str, plan: list[StepForecast], as_json: bool) -> None:
    if as_json:
        print_json([asdict(each) for each in plan])
        return
    columns = [("step", "left"), ("", "left"), ("MB", "right"), ("time", "right"), ("of", "left")]
    rows = []
    for each in plan:
        megabytes, time = f"{each.bytes / 1e6:,.0f}" if each.bytes else "", clock(each.seconds) if each.seconds else ""
        rows.append([each.step, each.state, megabytes, time, each.told])
    out().print(table(title, columns, rows))
    seconds, size = sum(each.seconds or 0.0 for each in plan), sum(each.bytes or 0 for each in plan)
    out().print(
        f"\nto do: about {clock(seconds)}, if this machine stays as busy as it is now; {size / 1e6:,.0f} MB of states"
    )
