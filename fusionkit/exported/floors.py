"""The floors beside a run, for its head's card: scores reached on the same draw without an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusionkit.fit.sweep.floors import SHARED
from fusionkit.runs.folder import RunsFolder, is_floor


def floors_beside(folder: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The scores of the floors on this run's draw, by name; None if there are none.

    Args:
        folder: of the run; other runs are beside it. A damaged record among them is left out.
    """
    found = {
        other["spec"]["fusion"]: other["scores"]
        for other in RunsFolder(folder.parent).readable_records()
        if is_floor(other) and other.get("status") == "finished" and _draw(other) == _draw(record)
    }
    return found or None


def _draw(record: Mapping[str, Any]) -> list[Any]:
    return [record["spec"].get(name) for name in SHARED]
