"""How many examples a run was trained on, from its record or its store."""

from __future__ import annotations

from typing import Any

from fusionkit.report.report_data import ReportData


def examples_learned(study: ReportData, record: dict[str, Any]) -> int | None:
    """Examples of an epoch; None where neither the record nor a store that is still there tells.

    Of a whole training split all examples count; those without a label, which are left out, are too few to show.
    """
    if record.get("draw"):
        return len(record["draw"])
    spec = record["spec"]
    if spec["mix"] is not None or spec["shots"] is not None:
        return None
    store = study.stores.get(spec["store"])
    if store is None or "train" not in store.splits:
        return None
    found = store.manifest["splits"]["train"]
    return int(found["rows"] if spec["task"] == "mlm" else found["examples"])
