"""The built wheel, installed where there is no checkout: the demonstration runs in an empty folder.

The gate gives the new environment the packages that are installed already, by a path file; the soak installs them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
IN_WHEEL = ("fusionkit", "data", "pyproject.toml", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command: object, cwd: Path = ROOT) -> str:
    """Standard output of a process that sees no checkout."""
    done = subprocess.run([*map(str, command)], cwd=cwd, env=ALONE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build may leave files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in IN_WHEEL:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder)
    [found] = folder.glob("fusionkit-*.whl")
    return found


def test_the_wheel_holds_what_is_used_and_no_more(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    ours = {f"{path.relative_to(ROOT)}" for path in (ROOT / "fusionkit").rglob("*") if path.is_file()}
    ours = {name for name in ours if "__pycache__" not in name}
    corpus = {f"fusionkit/{path.relative_to(ROOT)}" for path in (ROOT / "data").rglob("*") if path.is_file()}
    assert {name for name in names if ".dist-info/" not in name} == ours | corpus
    assert "fusionkit/py.typed" in names  # without it a type checker takes nothing of the package


def test_an_installed_wheel_finds_its_encoder_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    environment, empty = tmp_path / "environment", tmp_path / "empty"
    venv.create(environment, with_pip=False)
    empty.mkdir()
    python = environment / "bin" / "python"
    run(*PIP, "--python", python, "install", "--no-deps", wheel)
    site = sysconfig.get_path("purelib", vars={"base": str(environment)})
    Path(site, "packages.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    told = json.loads(run(environment / "bin" / "fusionkit", "doctor", "--json", cwd=empty))
    assert told["fusionkit"].endswith(f"in {site}/fusionkit")
    assert "missing" not in told["packages"]
    assert told["encoder"].startswith("minilm in ")
    assert {"demo: complete", "report: complete"} <= set(told["extras"].split("; "))


@pytest.mark.soak("products")
def test_an_empty_environment_installs_the_wheel_with_its_extras_and_runs_all_of_the_demonstration(
    wheel: Path, tmp_path: Path
) -> None:
    environment, empty = tmp_path / "environment", tmp_path / "empty"
    venv.create(environment, with_pip=True)
    empty.mkdir()
    python = environment / "bin" / "python"
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "-c", ROOT / "constraints.txt")
    run(*pip, "torch==2.13.0")  # first and by this version: only then is its small CPU build taken
    run(*pip, f"{wheel}[demo,report]")
    out = run(environment / "bin" / "fusionkit", "demo", cwd=empty)
    assert "40 heads trained over it" in out
    assert [path.name for path in empty.iterdir()] == ["travel-desk.html"]
    told = json.loads(run(environment / "bin" / "fusionkit", "doctor", "--json", cwd=empty))
    assert "s3: lacks s3fs (pip install 'fusionkit[s3]')" in told["extras"]
