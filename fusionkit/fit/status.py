"""What of a folder of runs is done, running and failed, as its files tell: from any machine that sees them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fusionkit.fit.results import CLAIMS, RunsFolder
from fusionkit.locks import holder_of, is_locked
from fusionkit.specs import RunSpec


def runs_status(runs: RunsFolder) -> dict[str, Any]:
    """Plain values: how many runs are ``finished``; ``running``, how many by who trains them; ``failed``, with errors.

    Raises:
        UsageError: there is neither a run nor anybody at work. StoreError: a record is damaged.
    """
    claims = runs.path / CLAIMS
    claimed = sorted(path for path in claims.iterdir() if is_locked(path)) if claims.is_dir() else []
    records = [] if claimed and not any(runs.path.glob("*/run.json")) else runs.records()
    failed = [record for record in records if record["status"] == "failed"]
    return {
        "path": str(runs.path),
        "finished": len(records) - len(failed),
        "running": dict(Counter(map(holder_of, claimed))),
        "failed": [
            {
                "digest": RunSpec.from_dict(record["spec"]).digest,
                **{
                    name: record["spec"][name]
                    for name in ("task", "label", "fusion", "head", "shots", "data_seed", "lr")
                },
                "error": record["error"],
            }
            for record in failed
        ],
    }
