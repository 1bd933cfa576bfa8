"""``fusionkit info``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusionkit.cli.console import JSON_OPTION, PLACE, count_table, given_store, out, print_json, runs_at, say_at_once
from fusionkit.io.places import Place, sizes_below
from fusionkit.plural import counted

if TYPE_CHECKING:
    from fusionkit.store import Store

COUNTS = ("examples", "sequences", "rows", "tokens", "masked", "cut")  # of a split; sequences if a pair is two


def store_summary(store: Store) -> dict[str, Any]:
    """The facts about a store, as plain values."""
    manifest = store.manifest
    return {
        "path": str(store.path),
        "source": store.name,
        "digest": store.digest,
        "encoder": manifest["encoder"]["name"],
        "rows": store.rows,
        "layers": list(store.layers),
        "hidden": store.hidden,
        "dtype": manifest["dtype"],
        "columns": manifest["columns"],
        "pair_as": manifest["identity"].get("pair_as", "one") if manifest["columns"]["pair"] else None,
        "splits": {
            name: {key: fields[key] for key in (*COUNTS, "rows_per_chunk") if key in fields}
            | {"chunks": len(fields["chunks"]["hidden_states"])}
            for name, fields in manifest["splits"].items()
        },
        "rows_total": sum(fields["rows"] for fields in manifest["splits"].values()),
        "bytes": sum(sizes_below(store.path).values()),
        "encode_seconds": manifest["provenance"]["seconds"],
        "compression": manifest["compression"],
        "reads": store.reads,
        "identity": manifest["identity"],
        "provenance": manifest["provenance"],
    }


@click.command()
@click.argument("path", type=PLACE)
@JSON_OPTION
def info(path: Place, as_json: bool) -> None:
    """Show what PATH holds: a store's identity, splits, rows, bytes and time, or a folder's runs."""
    say_at_once(f"opening {path}")
    if (runs := runs_at(path)) is not None:
        _show_runs(runs, as_json)
        return
    summary = store_summary(given_store(path))
    if as_json:
        print_json(summary)
        return
    identity, provenance = summary["identity"], summary["provenance"]
    columns = {role: name for role, name in summary["columns"].items() if name}
    shape = f"{summary['rows']} × layers {_text(summary['layers'])} × {summary['hidden']}"
    packed = summary["compression"]
    facts = [
        ("store", f"{path} ({summary['bytes'] / 1e6:,.1f} MB)"),
        ("read by", summary["reads"]),
        ("source", f"{summary['source']} · " + ", ".join(f"{k} {_text(v)}" for k, v in columns.items())),
        *(
            [("limit", f"the first {counted(limit, 'example')} of each split")]
            if (limit := identity.get("limit"))
            else []
        ),
        *([("pairs", f"each as {summary['pair_as']}")] if summary["pair_as"] else []),
        ("encoder", f"{summary['encoder']} · weights {identity['encoder']['weights'][:12]}"),
        ("states", f"{shape}, {summary['dtype']}" + ("" if packed == "none" else f", {packed}")),
        ("identity", summary["digest"]),
        ("encoded", f"{provenance['created']} on {provenance['device']} in {provenance['seconds']:.1f} s"),
        ("with", ", ".join(f"{name} {version}" for name, version in identity["versions"].items())),
    ]
    if mlm := identity.get("mlm"):
        masks = f"{mlm['mask_share']:.0%} of the sub-tokens, seed {mlm['mask_seed']}"
        head = mlm["lm_head"]
        told = f"of the {head['made_of']}" if "made_of" in head else f"with {head['activation']}"
        facts.insert(-2, ("masked", f"{masks} · LM head {told}"))
    console = out()
    for name, value in facts:
        console.print(f"{name:<9} {value}")
    # Of masked sub-tokens no row is that of a lost word, and "masked" would seem to count them.
    absent = {"masked" if mlm else "", "" if summary["pair_as"] == "two" else "sequences"}
    fields = [field for field in (*COUNTS, "chunks") if field not in absent]
    console.print(count_table("split", summary["splits"], dict(zip(fields, fields, strict=True))))


def _show_runs(path: Path, as_json: bool) -> None:
    from fusionkit.runs.folder import RunsFolder

    frame = RunsFolder(path).frame()
    names = ("data", "task", "label", "fusion", "head")
    summary = {
        "path": str(path),
        "runs": len(frame),
        "failed": int((frame["status"] == "failed").sum()),
        "seconds": float(frame["seconds"].astype(float).sum()),
        **{name: sorted(frame[name].unique().tolist()) for name in names},
    }
    if as_json:
        print_json(summary)
        return
    out().print(
        f"{path}: {counted(len(frame), 'run')}, {summary['failed']} failed, {summary['seconds']:.1f} s of training"
    )
    for name in names:
        out().print(f"{name:<9} {_text(summary[name])}")


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
