"""Every block of docs/your-own.md, run as it stands in a folder of its own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fusionkit.bundled import travel_desk
from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "your-own.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
NAMES = ("mix", "fit", "entry points", "check fusion", "heads", "fit head", "check head", "record")


@pytest.fixture(scope="module")
def blocks() -> dict[str, str]:
    assert [kind for kind, _ in BLOCKS] == ["python", "sh", "toml", "python", "python", "sh", "python", "json"]
    return dict(zip(NAMES, (text for _, text in BLOCKS), strict=True))


@pytest.fixture(scope="module")
def lab(blocks: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's modules, its tests and a store."""
    folder = tmp_path_factory.mktemp("lab")
    source = open_source(str(travel_desk("de")))
    encoder = load_encoder("minilm", device="cpu", words=True)
    encode(source, guess_columns(source), folder / "my.store", EncodeSpec(rows="words", layers="0,3,6"), encoder)
    (folder / "mylab").mkdir()
    (folder / "mylab" / "__init__.py").touch()
    (folder / "mylab" / "mix.py").write_text(blocks["mix"])
    (folder / "mylab" / "heads.py").write_text(blocks["heads"])
    (folder / "test_mine.py").write_text(blocks["check fusion"] + blocks["check head"])
    return folder


def run(folder: Path, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Python as an installed command has it: the working folder is not on its path."""
    places = [str(each) for each in (ROOT, path) if each is not None]
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(places)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def fusionkit(folder: Path, command: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", *command.split(), path=path)


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("runs/*/run.json"))]


def test_the_commands_train_and_the_record_says_what_code_it_was(lab: Path, blocks: dict[str, str]) -> None:
    for name in ("fit", "fit head"):
        done = fusionkit(lab, blocks[name])
        assert done.returncode == 0, done.stderr
    found = {(r["spec"]["fusion"], r["spec"]["head"]): r["sources"] for r in records(lab)}  # type: ignore[index]
    assert set(found) == {
        ("last", "tagger"), ("mylab.mix:Gated", "tagger"), ("mylab.mix:Gated:halve=yes", "tagger"),
        ("mylab.mix:Gated", "mylab.heads:Heated"),
    }  # fmt: skip
    assert found["last", "tagger"] is None
    sha256 = hashlib.sha256((lab / "mylab" / "mix.py").read_bytes()).hexdigest()
    said = json.loads(blocks["record"].replace("…", sha256))
    assert found["mylab.mix:Gated", "tagger"] == said["sources"]


def test_the_tests_pass_as_they_stand(lab: Path) -> None:
    done = run(lab, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(lab), "test_mine.py", path=lab)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.soak("products")
def test_the_entry_points_give_short_names(lab: Path, blocks: dict[str, str], tmp_path: Path) -> None:
    """As pip installs them: the package and its metadata side by side."""
    site = tmp_path / "site"
    shutil.copytree(lab / "mylab", site / "mylab")
    metadata = site / "mylab-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mylab\nVersion: 1.0\n")
    points = tomllib.loads(blocks["entry points"])["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    command = "fusionkit fit ../lab.store --label slots --fusion gated:halve=yes --head heated --epochs 1 --out runs"
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    done = fusionkit(folder, command.replace("../lab.store", str(lab / "my.store")), path=site)
    assert done.returncode == 0, done.stderr
    [record] = records(folder)
    assert record["spec"]["fusion"] == "gated:halve=yes"  # type: ignore[index]
    assert [(each["name"], each["path"]) for each in record["sources"]] == [  # type: ignore[attr-defined]
        ("gated", "mylab.mix:Gated"), ("heated", "mylab.heads:Heated"),
    ]  # fmt: skip
    assert "gated" in fusionkit(folder, "fusionkit fit --help", path=site).stdout
    absent = fusionkit(folder, f"fusionkit fit {lab / 'my.store'} --label slots --fusion gated --out none")
    assert absent.returncode == 2
    assert "unknown fusion 'gated'" in absent.stderr
    assert not (folder / "none").exists()
