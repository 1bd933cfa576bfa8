"""The choice of tests for the gate and for the soak, and how two workers share them.

The gate (``make test``) runs all tests that are not marked ``soak``: of each product marked ``product`` a sample, and
of every property the same few examples. The soak (``make soak``) runs, part by part, what the gate leaves out: the
tests marked ``soak(PART)``, the whole products (``products``), and many random examples (``fuzz``).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parent.parent
PARTS = ("kills", "slurm", "fuzz", "products")
# Folders whose tests share something slow to start: one worker runs the whole folder. Other tests are shared by file.
TOGETHER = ("slurm", "cluster", "objects", "report", "study")
# What takes longest begins first, so that the workers end together.
FIRST = (
    "slurm", "cluster", "objects", "study", "faults", "report", "fit", "cli", "tuning", "test_readme.py",
    "test_your_own.py",
)  # fmt: skip

# torch reads it at import. Two workers with more threads wait for each other and take several times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A test that is slow on a busy machine must not fail.
PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("gate", derandomize=True, max_examples=50, **PATIENT)
hypothesis.settings.register_profile("soak", max_examples=2000, **PATIENT)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", choices=PARTS, metavar="PART", help=f"one part of the soak: {', '.join(PARTS)}")
    parser.addoption("--soak-log", type=Path, metavar="FILE", help="where the part's result replaces its last one")


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("soak" if config.option.soak == "fuzz" else "gate")
    if config.option.soak_log is not None:
        config.stash[BEGAN] = time.monotonic(), commit()


BEGAN = pytest.StashKey[tuple[float, str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = chosen(items, config.option.soak)
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = sorted((item for item in items if item in wanted), key=lambda item: place(item.nodeid))


def chosen(items: list[pytest.Item], part: str | None) -> set[pytest.Item]:
    """The gate's tests, or those of one part of the soak."""
    marked = {item: mark.args[0] for item in items if (mark := item.get_closest_marker("soak"))}
    assert set(marked.values()) <= set(PARTS), "a mark names no part of the soak"
    products = [item for item in items if item.get_closest_marker("product")]
    if part is None:
        return set(items) - set(marked) - set(products) | sample(products)
    found = {item for item in marked if marked[item] == part}
    if part == "products":
        found |= set(products)
    if part == "fuzz":
        found |= {item for item in items if getattr(getattr(item, "obj", None), "is_hypothesis_test", False)}
    return found


def sample(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """A few tests of each function's product that cover every value of every parameter, each about equally often.

    The mark's argument is the size of the combinations to cover, by default 1: ``product(2)`` covers every pair of
    values of two parameters.
    """
    functions: dict[str, list[Any]] = {}
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    found: set[pytest.Item] = set()
    for tests in functions.values():
        mark = tests[0].get_closest_marker("product")
        values = {test: [(name, id(value)) for name, value in sorted(test.callspec.params.items())] for test in tests}
        meetings = {test: set(combinations(values[test], *mark.args or (1,))) for test in tests}
        missing, often = set().union(*meetings.values()), Counter[tuple[str, int]]()
        while missing:
            best = max(tests, key=lambda test: (len(meetings[test] & missing), -sum(often[v] for v in values[test])))
            found.add(best)
            missing -= meetings[best]
            often.update(values[best])
    return found


def place(test: str) -> int:
    folder = test.partition("::")[0].split("/")[1]
    return FIRST.index(folder) if folder in FIRST else len(FIRST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Workers take groups of tests, in the order of the tests."""
    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group
    return scheduler


def group(test: str) -> str:
    folder = test.split("/")[1]
    return folder if folder in TOGETHER else test.partition("::")[0]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the result of a part of the soak into the file of ``--soak-log``."""
    config = session.config
    if config.option.soak_log is None or hasattr(config, "workerinput"):
        return
    seen, (began, tested) = config.pluginmanager.getplugin("terminalreporter").stats, config.stash[BEGAN]
    result = {
        "part": config.option.soak, "commit": tested, "seconds": round(time.monotonic() - began),
        "passed": len(seen.get("passed", [])), "failed": len(seen.get("failed", [])) + len(seen.get("error", [])),
        "skipped": len(seen.get("skipped", [])),
    }  # fmt: skip
    file: Path = config.option.soak_log
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    lines = sorted([line for line in lines if line["part"] != result["part"]] + [result], key=lambda line: line["part"])
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def commit() -> str:
    """The commit that was tested, and whether files other than the soak's results differ from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    changes = subprocess.run(
        [*git, "status", "--porcelain", "--", ".", ":!tests/soak.jsonl"], capture_output=True, text=True, check=True
    ).stdout
    return f"{head} with changes" if changes else head


@pytest.fixture(scope="session")
def tables() -> Any:
    """``docs/tables.py`` as a module; it is in no package."""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def evidence() -> Any:
    """The script pipelines/evidence.py as a module."""
    path = ROOT / "pipelines" / "evidence.py"
    spec = importlib.util.spec_from_file_location("evidence", path)
    assert spec is not None
    assert spec.loader is not None
    sys.path.append(str(path.parent))  # as for a script that is run
    module = sys.modules["evidence"] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
