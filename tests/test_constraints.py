"""Every dependency of every extra is pinned once, to a version it allows, and what is installed is what is pinned."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
OPTIONAL = {"mlflow": "mlflow-skinny", "peft": "peft", "wandb": "wandb"}  # loaded for who asked for them, by an extra


def pins() -> list[tuple[NormalizedName, Version]]:
    """The lines of constraints.txt, in order."""
    found = []
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, equals, version = line.partition("==")
            assert equals, f"{line!r} is no exact pin"
            found.append((canonicalize_name(name), Version(version)))
    return found


def requirements(which: str = "all") -> list[Requirement]:
    """What the package and all of its extras ask for; its own extras are followed by being listed too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"].values() if which == "all" else ())]
    return [each for texts in lists for text in texts if (each := Requirement(text)).name != project["name"]]


def test_no_package_is_pinned_twice() -> None:
    names = [name for name, _ in pins()]
    assert len(names) == len(set(names)) > 60


def test_torch_is_pinned_to_one_version() -> None:
    """`make install` takes it alone, by this very line."""
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


def test_every_dependency_is_pinned_to_a_version_that_it_allows() -> None:
    pinned, seen = dict(pins()), 0
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name} is not pinned"
        assert pinned[name] in requirement.specifier, f"{requirement} does not admit {pinned[name]}"
        seen += 1
    assert seen >= 25


def test_every_package_that_is_imported_is_asked_for() -> None:
    """Directly: what another dependency brings along may be gone with its next version."""
    found = set()
    for path in (ROOT / "fusionkit").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).partition(".")[0])
    foreign = found - set(sys.stdlib_module_names) - {"fusionkit"} - set(OPTIONAL)
    assert set(OPTIONAL) <= found
    assert {*OPTIONAL.values()} <= {canonicalize_name(requirement.name) for requirement in requirements()}
    asked = {canonicalize_name(requirement.name) for requirement in requirements("dependencies")}
    owners = importlib.metadata.packages_distributions()
    assert {name for name in foreign if not asked & {canonicalize_name(owner) for owner in owners[name]}} == set()
    assert len(foreign) > 12


def test_the_extras_are_those_that_the_makefile_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"'\.\[([\w,]+)\]'", (ROOT / "Makefile").read_text(encoding="utf-8"))
    installed = {extra for each in named for extra in each.split(",")}
    assert {"demo", "test"} <= installed <= set(project["optional-dependencies"])


def test_what_is_installed_is_what_is_pinned() -> None:
    installed = {
        canonicalize_name(found.metadata["Name"]): Version(found.version)
        for found in importlib.metadata.distributions()
    }
    both = {name: version for name, version in pins() if name in installed}
    # A local part, as in 2.13.0+cpu, names the build of the same version.
    assert {name: installed[name].public for name in both} == {name: version.public for name, version in both.items()}
    assert len(both) > 45
