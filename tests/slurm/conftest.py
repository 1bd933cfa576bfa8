"""One Slurm for all tests of this folder, and what they need to use it."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fusionkit.encoder import Encoder, load_encoder


def _load(path: Path) -> Any:
    """Load a file among the tests as a module; the tests are no package."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_load(Path(__file__).with_name("leftovers.py"))
certificates = _load(Path(__file__).parent.parent / "cluster" / "conftest.py").certificates
daemons = _load(Path(__file__).with_name("daemons.py"))


@pytest.fixture(scope="session")
def slurm() -> Iterator[Any]:
    """A real Slurm of two nodes; this process and its children use it."""
    with daemons.started() as running, pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("SLURM", "SBATCH")):
                patch.delenv(name)
        for name, value in {**running.environment, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture
def empty(slurm: Any, until: Callable[..., None]) -> Iterator[Any]:
    """A Slurm without jobs, before and after the test."""
    assert slurm.jobs() == {}
    yield slurm
    if left := slurm.jobs():
        slurm.run("scancel", *left)
        until(lambda: not slurm.jobs())
    assert left == {}, "a job outlived its driver"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name has characters that break careless scripts."""
    made = tmp_path / 'a folder, 100%j "quoted"'
    made.mkdir()
    return made


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """A function that waits until a condition holds."""

    def wait(is_so: Callable[[], bool], seconds: float = 180.0) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.05)

    return wait


@pytest.fixture(scope="session")
def minilm() -> Encoder:
    return load_encoder("minilm", device="cpu")


@pytest.fixture(scope="session")
def content() -> Callable[[Path], dict[str, Any]]:
    """Every file of a store by its path inside; the manifest and the parts' records without times and machines."""

    def read(store: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for file in store.rglob("*"):
            name = file.relative_to(store).as_posix()
            if name == "manifest.json" or name.startswith("parts/"):
                values = json.loads(file.read_bytes())
                found[name] = {
                    key: value for key, value in values.items() if key not in ("provenance", "seconds", "computed_with")
                }
            elif file.is_file():
                found[name] = file.read_bytes()
        return found

    return read
