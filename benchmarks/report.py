#!/usr/bin/env python3
"""Claim: a page of 1,000 runs and 50,000 tokens of weights opens in under 3 s in headless Chromium and is under 10 MB.

    benchmarks/report.py RUNS [RUNS …]        runs of `fusionkit fit`, their stores beside them

The records of RUNS are repeated under further seeds until there are 1,000 runs, with the losses of repeated curves
changed a little: apart from the number of runs it is a page of real runs. All runs link to real weights, so that
the page can look inside repeated runs, too. The look inside has 50,000 rows of weights, or all rows that its sentences
have.

Measured: bytes; seconds from the start of the navigation until the tables, the look inside and the footer are there and
the charts in the window are drawn; seconds until all charts are drawn. The limits are printed beside them.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import click
from playwright.sync_api import sync_playwright

from fusionkit.report import write_report
from fusionkit.runs.folder import RECORD, WEIGHTS, RunsFolder
from fusionkit.runs.record import digest_of_record

RUNS, TOKENS, SECONDS, MEGABYTES = 1000, 50_000, 3.0, 10.0
VISIBLE = """
() => [...document.querySelectorAll('.chart')].filter(e => e.getBoundingClientRect().top < innerHeight)
    .every(e => e.querySelector('svg')) && document.documentElement.dataset.ready === 'yes'
"""
KEPT_TOKENS = """
() => { const r = JSON.parse(document.getElementById('report').textContent).inside; return r.looks
    .filter(l => l.weights).map(l => r.sources[l.source].tokens.flat().length).reduce((a, b) => a + b, 0); }
"""


def repeat(folders: tuple[Path, ...], target: Path, count: int) -> int:
    """Write ``count`` records into ``target``, those of the folders first; returns the number of repeated ones."""
    # A run that two sweeps share is one.
    found = {
        digest_of_record(record): (folder, record) for folder in folders for record in RunsFolder(folder).records()
    }
    real = list(found.values())
    shaken = random.Random(0)
    for number, (folder, record) in enumerate(itertools.islice(itertools.cycle(real), count)):
        made = copy.deepcopy(record)
        made["spec"]["init_seed"] += 1000 * (number // len(real))
        made["spec"]["data_seed"] += 1000 * (number // len(real))
        if number >= len(real):
            for epoch in made.get("curve") or []:
                epoch["loss"] *= 1 + shaken.gauss(0, 0.01)
        place = target / digest_of_record(made)
        place.mkdir()
        weights = folder / digest_of_record(record) / WEIGHTS
        if weights.is_file():
            (place / WEIGHTS).symlink_to(weights.resolve())
        (place / RECORD).write_text(json.dumps(made), encoding="utf-8")
    return max(count - len(real), 0)


def opened(browser: Any, page: Path) -> tuple[float, float, int]:
    """Seconds until the page and its visible charts stand, seconds until all charts are drawn, rows of weights."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.goto(page.as_uri(), wait_until="commit")
    tab.wait_for_function(VISIBLE, polling=20)
    stands = tab.evaluate("performance.now()") / 1000
    tab.wait_for_selector("html[data-charts=drawn]", timeout=120_000)
    whole = tab.evaluate("performance.now()") / 1000
    tokens = tab.evaluate(KEPT_TOKENS)
    context.close()
    return stands, whole, tokens


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--count", default=RUNS, show_default=True, help="Runs on the page.")
@click.option("--times", default=5, show_default=True, help="How often it is opened.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the page here.")
def measure(runs: tuple[Path, ...], count: int, times: int, keep: Path | None) -> None:
    """Make the page of RUNS repeated, and open it."""
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        raise click.UsageError("there is no Chromium on this machine")
    with tempfile.TemporaryDirectory() as scratch:
        target, page = Path(scratch) / "runs", keep or Path(scratch) / "report.html"
        target.mkdir()
        repeated = repeat(runs, target, count)
        facts = write_report([target], page, stores=[folder.resolve().parent for folder in runs])
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
            found = [opened(browser, page) for _ in range(times)]
            browser.close()
    stands = statistics.median(one[0] for one in found)
    whole = statistics.median(one[1] for one in found)
    click.echo(f"{facts.runs:,} runs ({repeated:,} of them real ones repeated), {found[0][2]:,} rows of weights")
    click.echo(f"{'':<34}{'measured':>10}{'limit':>8}")
    click.echo(f"{'megabytes':<34}{facts.bytes / 1e6:>10.1f}{MEGABYTES:>8.1f}")
    click.echo(f"{'seconds until it stands, median':<34}{stands:>10.2f}{SECONDS:>8.1f}")
    click.echo(f"{'seconds, the slowest of ' + str(times):<34}{max(one[0] for one in found):>10.2f}{SECONDS:>8.1f}")
    click.echo(f"{'seconds until all charts are drawn':<34}{whole:>10.2f}{'':>8}")


if __name__ == "__main__":
    measure()
