"""What is kept of a run: where it comes from, and what it came to."""

from __future__ import annotations

from typing import Any

from fusionkit.dataset.mixture import Mix
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.model.own_code import sources_of
from fusionkit.fit.sweep.grid import read_layers
from fusionkit.fit.train.result import RunResult
from fusionkit.specs import RunSpec


def finished_record(context: SweepContext, spec: RunSpec, result: RunResult) -> dict[str, Any]:
    """The record of a run that came to its end; its weights are kept beside."""
    # asdict would copy every tensor.
    values = {name: getattr(result, name) for name in result.__dataclass_fields__ if name != "weights"}
    return _record(context, spec, {"status": "finished", **values})


def failed_record(context: SweepContext, spec: RunSpec, reason: str) -> dict[str, Any]:
    """The record of a run that did not."""
    scores = {"metric": None, "score": None, "validation_score": None}
    return _record(context, spec, {"status": "failed", "error": reason, **scores})


def _record(context: SweepContext, spec: RunSpec, outcome: dict[str, Any]) -> dict[str, Any]:
    store, data, start = context.store, context.data(spec), context.start(spec)
    encoder, identity = store.manifest["encoder"], store.manifest["identity"]
    others = outcome.get("others", {})
    return {
        "spec": spec.to_dict(),
        "data": store.name,
        "encoder": encoder["name"],
        "encoder_parameters": encoder["parameters"],
        "rows": store.rows,
        "layers": list(read_layers(store, spec)),
        "labels": data.labels,
        "default": data.default,
        "hidden": store.hidden,
        "sides": data.train.sides,
        "encoding": {  # what a live encoder must be, and be given, to make these states
            "encoder": identity["encoder"],
            "compute_dtype": identity["compute_dtype"],
            "max_length": identity["max_length"],
            "columns": {role: identity["columns"][role] for role in ("text", "pair", "tokens")},
            "pair_as": identity.get("pair_as", "one"),
        },
        "sources": sources_of(spec),
        "init_data": None if start is None else start.data,
        **(store.record(spec) if isinstance(store, Mix) else {"evaluated": store.name}),
        **outcome,
        "others": {
            name: {"labels": other.labels, "default": other.default, **others.get(name, {})}
            for name, other in data.others.items()
        },
    }
