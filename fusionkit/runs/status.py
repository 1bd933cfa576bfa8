"""Which runs of a folder are done, running or failed, read from its files by any machine that sees them."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

from fusionkit.locks import holder_of, is_locked
from fusionkit.runs.folder import CLAIMS, UNIT, RunsFolder, digest_of_record

SHOWN = ("task", "label", "fusion", "head", "shots", "data_seed", "lr")  # of a run that failed


def runs_status(runs: RunsFolder) -> dict[str, Any]:
    """How many runs are ``finished``; ``running``, how many by who trains them; ``failed``, with errors."""
    claims = runs.path / CLAIMS
    there: list[Path] = []
    with contextlib.suppress(FileNotFoundError):  # it goes with the last claim in it
        there = sorted(claims.iterdir())
    claimed = [path for path in there if not path.name.startswith(UNIT) and is_locked(path)]
    records = runs.all_records()
    failed = [record for record in records if record["status"] == "failed"]
    return {
        "path": str(runs.path),
        "finished": len(records) - len(failed),
        "running": dict(Counter(map(holder_of, claimed))),
        "failed": [
            {
                "digest": digest_of_record(record),
                **{name: record["spec"][name] for name in SHOWN},
                "error": record["error"],
            }
            for record in failed
        ],
    }
