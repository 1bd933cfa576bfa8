"""``fusionkit export`` over the bundled corpus, and ``predict`` with what it wrote."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def run(fusionkit: Command, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One head for intents."""
    out = tmp_path_factory.mktemp("export") / "runs"
    choices = ("--label", "intent", "--pool", "mean", "--fusion", "linear", "--epochs", 3)
    assert fusionkit("fit", store, *choices, "--out", out).code == 0
    return next(path for path in out.iterdir() if path.is_dir())


def test_an_exported_head_predicts_where_its_run_is_gone(
    fusionkit: Command, run: Path, corpus: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(run.parent, runs)
    done = fusionkit("export", str(runs / run.name)[:-8], "--to", tmp_path / "head", "--json")
    assert done.code == 0, done.err
    assert done.json["run"] == run.name
    assert list(done.json["bytes"]) == ["README.md", "config.json", "model.safetensors"]
    assert done.json["bytes"]["model.safetensors"] == (run / "weights.safetensors").stat().st_size
    wanted = fusionkit("predict", run, "--input", corpus / "test.jsonl", "--json")
    shutil.rmtree(runs)
    found = fusionkit("predict", tmp_path / "head", "--input", corpus / "test.jsonl", "--json")
    assert (found.code, found.out) == (0, wanted.out)
    assert len(found.out.splitlines()) == 30
    assert fusionkit("predict", tmp_path / "head", "ein Flug", "nach Oslo").code == 0
    assert fusionkit("evaluate", tmp_path / "head", corpus, "--json").json[0]["run"] == run.name


def test_what_was_written_is_told_in_lines(fusionkit: Command, run: Path, tmp_path: Path) -> None:
    done = fusionkit("export", run, "--to", tmp_path / "head")
    assert done.out.splitlines()[0].startswith("intent: linear + classifier")
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == ["README.md", "config.json", "model.safetensors"]
    assert fusionkit("export", run, "--to", tmp_path / "head").code == 2
    assert fusionkit("export", run, "--to", tmp_path / "head", "--overwrite").out == done.out
    each = fusionkit("export", run.parent, "--best", "--by", "task", "--to", tmp_path / "heads", "--json")
    assert [Path(one["folder"]).name for one in each.json] == ["intent"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("no-such-runs/abcd1234", "--to", "NEW"), 2, "holds no finished run"),
        (("RUNS/..", "--to", "NEW"), 2, "holds no finished run"),
        (("RUN",), 2, "export needs --to"),
        (("RUN", "--to", "NEW", "--by", "task"), 2, "chooses nothing without --best"),
        (("RUN", "--to", "s3://bucket/head"), 2, "local disk"),
        (("RUN", "--to", "RUN", "--overwrite"), 2, "holds something else"),
        (("RUN", "--to", "FILE/head"), 1, "cannot write"),
    ],
)
def test_a_mistake_is_one_message(
    fusionkit: Command, run: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "file").touch()
    places = {"RUNS": run.parent, "RUN": run, "FILE": tmp_path / "file", "NEW": tmp_path / "new"}
    given = []
    for argument in arguments:
        head, slash, tail = argument.partition("/")
        given.append(f"{places[head]}{slash}{tail}" if head in places else argument)
    done = fusionkit("export", *given)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "new").exists()
