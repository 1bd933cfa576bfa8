"""Where the numbers of a report come from: encoders, stores, versions, and the commands that make it again."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
from pathlib import Path
from typing import Any

from fusionkit.report.report_data import ReportData

PACKAGES = ("fusionkit", "torch", "numpy", "scipy", "zarr", "altair", "vl-convert-python")


def provenance_of(study: ReportData, baseline: str | None, out: Path) -> dict[str, Any]:
    """Plain values; no path of this machine but those that the user gave."""
    seen: dict[str, dict[str, Any]] = {}
    for record in study.records.values():
        seen.setdefault(record["spec"]["store"], record)
    stores, encoders = [], {}
    for digest, record in seen.items():
        encoding, store = record.get("encoding") or {}, study.stores.get(digest)
        identity = encoding.get("encoder") or {}
        encoders[record["encoder"], identity.get("weights")] = {
            "name": record["encoder"],
            "parameters": record.get("encoder_parameters"),
            "weights": identity.get("weights"),
            "tokenizer": identity.get("tokenizer"),
            "revision": identity.get("revision"),
        }
        manifest = {} if store is None else store.manifest
        stores.append({
            "digest": digest,
            "data": record["data"],
            "rows": record["rows"],
            "layers": record["layers"] if store is None else list(store.layers),
            "dtype": manifest.get("dtype"),
            "there": store is not None,
            "examples": {name: split["examples"] for name, split in manifest.get("splits", {}).items()},
            "versions": (manifest.get("identity") or {}).get("versions"),
            "encode": _encode(record, store),
        })  # fmt: skip
    words = ["fusionkit", "report", *map(str, study.folders), "--out", str(out)]
    words += [] if baseline is None else ["--baseline", baseline]
    return {
        "encoders": list(encoders.values()),
        "stores": stores,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "command": shlex.join(words),
        "runs": [{"folder": str(folder), "runs": int((study.frame["folder"] == str(folder)).sum())}
                 for folder in study.folders],
    }  # fmt: skip


def _encode(record: dict[str, Any], store: Any) -> str:
    """The command that encodes a store of this identity from the source of this name."""
    encoding = record.get("encoding") or {}
    columns = encoding.get("columns") or {}
    words = ["fusionkit", "encode", str(record["data"]).split(" + ")[0], "--encoder", str(record["encoder"])]
    words += ["--rows", str(record["rows"])] if record["rows"] != "masked-tokens" else ["--task", "mlm"]
    for role in ("text", "pair", "tokens"):
        words += [f"--{role}", columns[role]] if columns.get(role) else []
    words += ["--pair-as", "two"] if record.get("sides") == 2 else []
    if store is not None:
        count = store.manifest["encoder"]["layers"]
        words += ["--layers", ",".join(map(str, store.layers))] if len(store.layers) < count else []
        words += ["--dtype", store.manifest["dtype"]]
    words += ["--max-length", str(encoding["max_length"])] if encoding.get("max_length") else []
    name = Path(store.path.name) if store is not None else f"{record['data']}.store"
    return shlex.join([*words, "--out", str(name)])
