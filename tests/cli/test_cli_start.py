"""A misspelt name, file or option is told before torch, which takes seconds to import; commands import little else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Command lines about a source `some.jsonl` and a folder of runs `runs`, with what the error says.
MISTAKES = {
    "enocde some.jsonl": "unknown command 'enocde'",
    "encode nothing.csv --out new.store": "no such source: nothing.csv",
    "encode some.jsonl --out new.store --encoder minilmm": "did you mean 'minilm'?",
    "encode some.jsonl --out new.store --text txet": "did you mean 'text'?",
    "encode some.jsonl --out full": "full exists and is no store",
    "estimate some.jsonl --text txet": "did you mean 'text'?",
    "fit no.store --fusion attntion --out new": "did you mean 'attention'?",
    "fit no.store --fusion linear:nrm=token --out new": "did you mean 'norm'?",
    "fit no.store --head taggr --out new": "did you mean 'tagger'?",
    "fit no.store --method houlsbi:8 --out new": "did you mean 'houlsby:m'?",
    "fit no.store --task taging --out new": "did you mean 'tagging'?",
    "fit no.store --lr -1 --out new": "lr is out of range",
    "fit no.store --init-from nowhere --out new": "nowhere holds no finished run",
    "fit no.store --out full": "full is no folder of runs",
    "fit no.store --out new": "no.store is no store",
    "fit no.store --sweep sweep.yaml --out new": "sweep.yaml, line 1: unknown fusion 'attntion'",
    "run study.yaml --out new": "study.yaml, line 3: unknown fusion 'attntion'",
    "run nothing.yaml --out new": "nothing.yaml",
    "predict nowhere text": "nowhere holds no finished run",
    "export nowhere --to new": "nowhere holds no finished run",
    "report nowhere --out page.html": "nowhere holds no finished run",
    "results nowhere": "nowhere holds no finished run",
    "status nowhere": "nowhere is neither a store nor a folder of runs",
    "info nowhere": "nowhere is neither a store nor a folder of runs",
    "verify nowhere": "nowhere is no store",
}
EACH = """
import contextlib, io, json, sys
from fusionkit.cli.main import main
told = {}
for line in json.loads(sys.argv[1]):
    sys.argv = ["fusionkit", *line.split()]
    out = io.StringIO()
    try:
        with contextlib.redirect_stderr(out):
            main()
    except SystemExit as end:
        told[line] = end.code, out.getvalue(), sorted({"torch", "transformers", "scipy", "zarr"} & set(sys.modules))
print(json.dumps(told))
"""


def test_what_is_misspelt_is_told_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text('{"text": "one", "label": "a"}\n{"text": "two", "label": "b"}\n')
    (tmp_path / "sweep.yaml").write_text("fusion: attntion\n")
    (tmp_path / "study.yaml").write_text(
        "sources: {some: some.jsonl}\nsweeps:\n  one: {store: some, fusion: attntion}\n"
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    before = {path.name for path in tmp_path.iterdir()}
    command = [sys.executable, "-c", EACH, json.dumps(list(MISTAKES))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    told = json.loads(done.stdout)
    assert list(told) == list(MISTAKES)
    for line, (code, error, loaded) in told.items():
        assert (code, loaded) == (2, []), line
        assert MISTAKES[line] in error, line
    assert {path.name for path in tmp_path.iterdir()} == before


def test_whoever_waits_at_a_terminal_is_told_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    code = """
import builtins, json, sys
load = builtins.__import__
def quick(name, *rest, **more):
    if name.split(".")[0] in ("torch", "pandas", "zarr", "scipy"):
        raise SystemExit(7)
    return load(name, *rest, **more)
builtins.__import__ = quick
from fusionkit.cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["fusionkit", *words]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 7, (words, ended.code)
"""
    (tmp_path / "runs" / ("0" * 16)).mkdir(parents=True)
    (tmp_path / "runs" / ("0" * 16) / "run.json").write_text('{"status": "finished", "spec": {}}')
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "manifest.json").write_text("{}")
    lines = [["info", "s"], ["results", "runs"], ["verify", "s"], ["export", "runs", "--to", "x"]]
    master, terminal = os.openpty()
    command = [sys.executable, "-c", code, json.dumps(lines)]
    done = subprocess.run(command, stderr=terminal, stdout=subprocess.PIPE, cwd=tmp_path, check=False)
    os.close(terminal)
    said = os.read(master, 10_000).decode().split("\r\n")
    os.close(master)
    assert said[:4] == ["opening s", "reading the runs in runs", "opening s", "exporting runs"], said
    assert done.returncode == 0, said


UNUSED = """
import json, sys
from fusionkit.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code
unused = ("torch._dynamo", "scipy.optimize")
assert not [name for name in unused if name in sys.modules]
"""
# What such a process can still do.
STILL = """
import torch
from scipy.optimize import linear_sum_assignment
from transformers.utils import is_scipy_available
assert is_scipy_available()
assert torch.distributed.tensor.DTensor  # as peft asks for it
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2
assert "torch._dynamo" in sys.modules
"""


@pytest.mark.parametrize("more", ["", pytest.param(STILL, marks=pytest.mark.soak("products"))], ids=["", "still"])
def test_an_encode_imports_little_of_what_transformers_can_use(tmp_path: Path, more: str) -> None:
    (tmp_path / "some.jsonl").write_text('{"text": "one"}\n{"text": "two three"}\n')
    command = [sys.executable, "-c", UNUSED + more, "encode", "some.jsonl", "--out", "new.store"]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (tmp_path / "new.store" / "manifest.json").is_file()
