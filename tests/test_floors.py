"""The house's floors: imports point down only, the two stages share the store alone, files stay small."""

from __future__ import annotations

import ast
import graphlib
import re
import statistics
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fusionkit"
FLOORS = {
    0: (
        "ragged", "specs", "errors", "io", "machine", "tags", "lm_head", "names", "options", "registry", "plural",
        "printable", "lazy",
    ),
    1: ("sources", "tasks", "metrics", "alignment", "bundled", "fusions", "heads", "statistics"),
    2: ("store", "encoder"),
    3: ("encode", "methods", "runs", "dataset", "fit"),
    4: ("estimator", "evaluation", "exported", "predict", "live_rows", "testing", "tuning"),
    5: ("cluster", "logs", "report"),
    6: ("study",),
    7: ("cli",),
    8: ("__init__", "__main__"),
}  # fmt: skip
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names}
STAGE_ONE, STAGE_TWO = ("sources", "encoder", "encode"), (
    "fusions", "heads", "tasks", "metrics", "statistics", "runs", "dataset", "fit",
)  # fmt: skip
# Inside stage two, from the bottom; packages of one tuple know nothing of each other.
FIT = (
    ("runs", "dataset"), ("fit.model", "fit.loader"), ("fit.vectorized",), ("fit.train",), ("fit.sweep",),
    ("fit.executor",),
)  # fmt: skip
MOST_FILES = 25  # of one folder
MOST_NAMESAKES = 20  # file names that occur in several packages, the command line's left out


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def files() -> dict[str, Path]:
    """Every module of the package with its file."""
    return {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(path: Path, modules: set[str]) -> set[str]:
    """The package's modules that a file imports, anywhere in it, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else str(node.module) for name in whole}
    ours = {name for name in found if name.partition(".")[0] == "fusionkit"}
    assert ours <= modules, f"{path} imports {ours - modules}"
    return ours


@cache
def graph() -> dict[str, set[str]]:
    """Each module with those it imports; a module inside a package brings the package's own file along."""
    known = files()
    found = {}
    for name, path in known.items():
        direct = imports(path, set(known))
        packages = {target.rpartition(".")[0] for target in direct if target.count(".") > 1}
        found[name] = direct | {package for package in packages if not f"{name}.".startswith(f"{package}.")}
    return found


def place(module: str) -> str:
    """The part of the package that a module belongs to."""
    return f"{module}.__init__".split(".")[1]


def reached(start: tuple[str, ...]) -> set[str]:
    """The parts that these parts import, however far away."""
    edges = graph()
    todo = [name for name in edges if place(name) in start]
    seen = set(todo)
    while todo:
        fresh = edges[todo.pop()] - seen
        seen |= fresh
        todo += fresh
    return {place(name) for name in seen}


def test_every_file_is_seen_and_has_a_floor() -> None:
    on_disk = [path for path in PACKAGE.glob("**/*") if path.suffix == ".py"]
    assert len(files()) == len(on_disk) > 50
    assert {place(name) for name in files()} <= set(FLOOR_OF)


def test_imports_point_down() -> None:
    climbs = [
        f"{name} (floor {FLOOR_OF[place(name)]}) imports {target} (floor {FLOOR_OF[place(target)]})"
        for name, targets in graph().items()
        for target in targets
        if FLOOR_OF[place(target)] > FLOOR_OF[place(name)]
    ]
    assert not climbs
    assert sum(map(len, graph().values())) > 200  # imports seen


def test_the_packages_of_stage_two_import_down_only() -> None:
    height = {f"fusionkit.{package}": k for k, packages in enumerate(FIT) for package in packages}

    def package_of(module: str) -> str | None:
        return next((one for one in height if f"{module}.".startswith(f"{one}.")), None)

    ends = ((package_of(name), package_of(target)) for name, targets in graph().items() for target in targets)
    edges = {(above, below) for above, below in ends if above and below}
    assert {above for above, _ in edges} == set(height)
    assert not {(a, b) for a, b in edges if a != b and height[b] >= height[a]}


def test_the_page_on_the_design_lists_the_same_floors() -> None:
    page = (PACKAGE.parent / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (.*?) \|", page, flags=re.MULTILINE)
    listed = {name: int(floor) for floor, cell in rows for name in re.findall(r"`(\w+)(?:\.py|/)`", cell)}
    assert listed == {name: floor for name, floor in FLOOR_OF.items() if floor < 8}


def test_folders_can_be_overlooked() -> None:
    """No folder has more files than one sees at once, and few files of several packages have one name."""
    folders = Counter(path.parent for path in files().values())
    folders.update(path.parent for path in (PACKAGE.parent / "tests").rglob("*.py"))
    assert {folder: count for folder, count in folders.items() if count > MOST_FILES} == {}
    stems = Counter(path.stem for path in files().values() if path.parent.name != "cli" and path.stem != "__init__")
    assert len([stem for stem, count in stems.items() if count > 1]) <= MOST_NAMESAKES


def test_no_two_classes_have_one_name() -> None:
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in files().items()}
    classes = Counter(node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert {name: count for name, count in classes.items() if count > 1} == {}
    assert len(classes) > 150


def test_no_module_imports_itself_by_a_detour() -> None:
    order = list(graphlib.TopologicalSorter(graph()).static_order())  # raises CycleError with the circle
    assert sorted(order) == sorted(files())


def test_the_stages_share_the_store_alone() -> None:
    one, two = reached(STAGE_ONE), reached(STAGE_TWO)
    assert not one & set(STAGE_TWO)
    assert not two & set(STAGE_ONE)
    assert "store" in one & two
    assert one & two <= {"store", *FLOORS[0], "alignment", "__init__"}


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        (
            "fusionkit.fit, fusionkit.fusions, fusionkit.heads, fusionkit.store",
            "transformers fusionkit.encode fusionkit.encoder",
        ),
        ("fusionkit.encode, fusionkit.encoder, fusionkit.sources", "fusionkit.fit fusionkit.fusions fusionkit.heads"),
    ],
)
def test_a_stage_loads_nothing_of_the_other(imported: str, absent: str) -> None:
    code = (
        f"import sys, {imported}; print(*sorted(set({absent.split()!r}) & set(sys.modules))); print(len(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, count = done.stdout.split("\n")[:2]
    assert loaded == ""
    assert int(count) > 50


def test_files_are_short() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in files().items()}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
    assert statistics.median(lengths.values()) <= 150


def test_a_climb_or_a_circle_would_be_seen(tmp_path: Path) -> None:
    """The reading of imports itself: in functions, of names and of modules."""
    path = tmp_path / "module.py"
    path.write_text(
        "import fusionkit.a\ndef f():\n    from fusionkit.b import c, d\nimport os\nfrom fusionkit import e\n"
    )
    assert imports(path, {"fusionkit.a", "fusionkit.b", "fusionkit.b.c", "fusionkit.e"}) == {
        "fusionkit.a", "fusionkit.b", "fusionkit.b.c", "fusionkit.e"
    }  # fmt: skip
    path.write_text("from .a import b\n")
    with pytest.raises(AssertionError, match="imports relatively"):
        imports(path, set())
