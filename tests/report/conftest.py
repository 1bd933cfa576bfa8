"""Runs over a few sentences of the corpus and two hostile ones, the page of the runs, and a browser to open it."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from fusionkit.bundled import travel_desk
from fusionkit.cli.main import main
from fusionkit.report.predictions import AllPredictions, all_predictions
from fusionkit.report.report_data import ReportData, read_report_data

SCRIPT = "<script>window.stolen=1</script>"
HOSTILE = [
    {"tokens": ["Oslo", SCRIPT, "</script>", "<!--"], "slots": ["B-city", "O", "O", "O"], "intent": "<b>bold</b>"},
    {"tokens": ['<img src=x onerror="window.stolen=2">', "Rom"], "slots": ["O", "B-city"], "intent": "<b>bold</b>"},
]
FUSIONS = ("last", "layer:0", "layer:3", "linear", "attention", "attention:scale=yes")
FEW = ("last", "linear", "attention")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium", "fonts-liberation")


@dataclass(frozen=True)
class Made:
    """A store, its runs and the page of them.

    Attributes:
        told: what ``report --json`` printed. script: the script in one of the sentences.
    """

    store: Path
    runs: Path
    page: Path
    figures: Path
    told: dict[str, Any]
    script: str = SCRIPT


def command(*args: object) -> str:
    """Run ``fusionkit ARGS`` in this process, assert that it exits with 0, and return its standard output."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["fusionkit", *map(str, args)])
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0, err.getvalue()
    return out.getvalue()


@pytest.fixture(scope="session", name="command")
def command_fixture() -> Callable[..., str]:
    """The function ``command``."""
    return command


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Runs of slots by six fusions, three of them also with 2 shots, and of intents by two fusions; two seeds each."""
    folder = tmp_path_factory.mktemp("a report")
    source = folder / "desk-de"
    source.mkdir()
    for name, count in (("train", 40), ("validation", 10), ("test", 14)):
        lines = (travel_desk("de") / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[:count]
        lines += [json.dumps({"id": f"{name}-{k}", "text": "", **row}) for k, row in enumerate(HOSTILE)]
        (source / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    store, runs = folder / "desk.store", folder / "runs"
    command("encode", source, "--out", store, "--rows", "words", "--layers", "0,3,6")
    options = ["--epochs", 6, "--lr", "2e-2", "--batch-size", 16, "--out", runs]
    few = [word for fusion in FEW for word in ("--fusion", fusion)]
    chosen = [word for fusion in FUSIONS for word in ("--fusion", fusion)]
    command("fit", store, "--label", "slots", "--head", "tagger", *few, "--shots", 2, "--seeds", 2, *options)
    command("fit", store, "--label", "slots", "--head", "tagger", *chosen, "--seeds", 2, *options)
    command("fit", store, "--label", "intent", "--fusion", "last", "--fusion", "attention", "--pool", "mean",
            "--seeds", 2, *options)  # fmt: skip
    page, figures = folder / "report.html", folder / "figures"
    told = json.loads(command("report", runs, "--out", page, "--figures", figures, "--json"))
    return Made(store, runs, page, figures, told)


@pytest.fixture(scope="session")
def study(made: Made) -> ReportData:
    """The data of these runs from which the figures are made."""
    return read_report_data([made.runs])


@pytest.fixture(scope="session")
def predictions(study: ReportData) -> AllPredictions:
    """The predictions that the page can show."""
    return all_predictions(study)


def chromium() -> str | None:
    """The path of this machine's Chromium, which is installed if needed and possible; None where there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
            if subprocess.run(["apt-get", *words], env=quiet, capture_output=True).returncode:
                return None
        found = next(filter(None, map(shutil.which, BROWSERS)), None)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium of this machine."""
    program = chromium()
    if program is None:
        pytest.skip("no Chromium, and no apt-get as root to install it: the page is not opened")
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextmanager
def opening(browser: Any, made: Made) -> Iterator[Callable[..., Any]]:
    """Opens a page and waits for its charts; at the end, asserts an empty console and no requests but for the page."""
    contexts, said, asked, opened_pages = [], [], [], set()

    def opened(wait: bool = True, place: Path = made.page, **options: Any) -> Any:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(place.as_uri())
        opened_pages.add(place.as_uri())
        if wait:
            page.wait_for_selector("html[data-charts=drawn]", timeout=60_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert asked
    assert set(asked) == opened_pages


@pytest.fixture
def open_page(browser: Any, made: Made) -> Iterator[Callable[..., Any]]:
    """Opens pages of this test's own."""
    with opening(browser, made) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(browser: Any, made: Made) -> Iterator[Any]:
    """The page, drawn once for a file's tests: none sorts its first table, each chooses what it looks into."""
    with opening(browser, made) as opened:
        yield opened()
