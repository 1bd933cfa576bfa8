"""The command line as a function, and stores that it made once."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fusionkit.cli.main import main

CORPUS = Path(__file__).parent.parent.parent / "data" / "travel-desk" / "de"


@dataclass(frozen=True)
class Result:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON value and nothing else."""
        return json.loads(self.out, parse_constant=_no_json)


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


Command = Callable[..., Result]


def command(*args: object) -> Result:
    """Run ``fusionkit ARGS`` through its entry point; an exception that is not caught there reaches the test."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["fusionkit", *map(str, args)])
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return Result(ended.value.code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def fusionkit() -> Command:
    """Runs one command in this process."""
    return command


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The German travel-desk corpus: 80, 20 and 30 examples with slots and intents."""
    return CORPUS


@pytest.fixture(scope="session")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A store of the corpus and what ``encode --json`` printed when it made it."""
    store = tmp_path_factory.mktemp("encoded") / "de.store"
    return store, command("encode", CORPUS, "--out", store, "--layers", "0,3,6", "--json")


@pytest.fixture(scope="session")
def store(encoded: tuple[Path, Result]) -> Path:
    """A store of the corpus: rows of tokens, layers 0, 3 and 6."""
    return encoded[0]


@pytest.fixture(scope="session")
def write_source(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder of JSON lines: ``write_source(train=[…], test=[…])``."""

    def write(**splits: list[dict[str, Any]]) -> Path:
        folder = tmp_path_factory.mktemp("source")
        for split, rows in splits.items():
            (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        return folder

    return write


@pytest.fixture(scope="session")
def small(write_source: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store of texts whose test split has a label that train lacks."""
    texts = [{"text": f"number {i}", "label": "odd" if i % 2 else "even"} for i in range(12)]
    source = write_source(train=texts, validation=texts[:4], test=[*texts[4:7], {"text": "pi", "label": "neither"}])
    store = tmp_path_factory.mktemp("small") / "small.store"
    assert command("encode", source, "--out", store, "--layers", "6").code == 0
    return store
