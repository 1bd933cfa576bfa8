"""The command line as a function, and one small study that was run to its end."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fusionkit.bundled import travel_desk
from fusionkit.cli.main import main

TINY = """
encoder: minilm
rows: tokens
layers: 0,6
sources:
  one: ${data}/one
  two: {source: "${data}/two"}
fit: {seeds: 2, epochs: 1, floor: none}
sweeps:
  base:
    store: one
    runs:
      - {label: intent, pool: mean, fusion: [last, linear]}
      - {label: slots, fusion: linear}
  moved:
    store: [one, "two:50%"]
    label: intent
    pool: mean
    fusion: linear
    init-from: base
    freeze: fusion
    evaluate-on: [two, one]
comparisons:
  wide: {by: [sweep, label, evaluated, fusion], across: fusion}
  against: {sweeps: base, by: [label, fusion], baseline: last}
"""


@dataclass(frozen=True)
class Result:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


def command(*args: object) -> Result:
    """Run ``fusionkit ARGS`` through its entry point."""
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
def tiny() -> str:
    """The text of a small study over two sources."""
    return TINY


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of a few sentences of travel-desk, German and French."""
    folder = tmp_path_factory.mktemp("data")
    for name, language in (("one", "de"), ("two", "fr")):
        (folder / name).mkdir()
        for path in travel_desk(language).glob("*.jsonl"):
            lines = path.read_text(encoding="utf-8").splitlines()[: 40 if path.stem == "train" else 20]
            (folder / name / path.name).write_text("\n".join(lines), encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Ran:
    """A study, its folder, and how its first run ended."""

    file: Path
    data: Path
    work: Path
    first: Result

    def command(self, *more: object, work: Path | None = None) -> Result:
        return command("run", self.file, "--set", f"data={self.data}", "--out", work or self.work, *more)


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Ran:
    """The study above, run once."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "tiny.yaml").write_text(TINY)
    made = Ran(folder / "tiny.yaml", data, folder / "work", Result(0, "", ""))
    return Ran(made.file, data, made.work, made.command("--json", "--workers", 1))


@pytest.fixture
def written(tmp_path: Path, data: Path) -> Callable[..., Any]:
    """Reads a study from this text; ``${data}`` is the folder of the fixture ``data``."""
    from fusionkit.study import read_study

    def read(text: str, *settings: str, only: tuple[str, ...] = ()) -> Any:
        (tmp_path / "study.yaml").write_text(text)
        return read_study(tmp_path / "study.yaml", [f"data={data}", *settings], only)

    return read
