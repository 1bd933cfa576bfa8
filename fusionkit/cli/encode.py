"""``fusionkit encode``."""

from __future__ import annotations

from typing import Any

import click

from fusionkit.cli.console import JSON_OPTION, PLACE, Bars, out, print_json, stop_on_sigterm
from fusionkit.cli.encoding import encoding_options, load_inputs
from fusionkit.cli.info import store_summary
from fusionkit.encode import encode as run_encode
from fusionkit.encode.job import job_of
from fusionkit.encode.share import encode_share, parse_share
from fusionkit.errors import UsageError
from fusionkit.places import Place
from fusionkit.specs import parse_bytes
from fusionkit.store import open_store


@click.command()
@encoding_options
@click.option("--out", "store", required=True, type=PLACE, help="Folder, or s3://… address.")
@click.option("--overwrite", is_flag=True, help="Replace a store that holds something else.")
@click.option("--budget", help="Refuse a store larger than this, uncompressed, e.g. 50GB.")
@click.option("--parts", help="I/N: only that share of the parts, as the tasks of an array job do; 0/N only plans.")
@JSON_OPTION
def encode(store: Place, overwrite: bool, budget: str | None, parts: str | None, as_json: bool, **options: Any) -> None:
    """Encode SOURCE once and keep every layer's states.

    SOURCE is a file (CSV, TSV, JSONL, Parquet, CoNLL columns), a folder of train/validation/test files, a
    folder that datasets saved, or a hub id. Run again after an interruption, it goes on where it stopped.
    """
    limit = parse_bytes(budget) if budget else None
    share = parse_share(parts) if parts else None
    if share and overwrite:
        raise UsageError(
            "--parts does not go with --overwrite: each share would plan anew",
            remedy="run --parts 0/N after you have removed the store",
        )
    with Bars() as bars, stop_on_sigterm() as stop:
        source, columns, spec, encoder = load_inputs(bars.say, **options)
        if share:
            job = job_of(source, columns, store, spec, encoder, bars, limit)
            report = encode_share(job, share, stop)
        else:
            report = run_encode(
                source, columns, store, spec, encoder, overwrite=overwrite, progress=bars, stop=stop, budget=limit
            )
    if share and report.outcome == "share":
        if as_json:
            print_json({"outcome": "share", "call_seconds": round(report.seconds, 3), "tokens": report.tokens})
        else:
            out().print(f"{store}: share {parts} is done; the store is finished when the other shares are")
        return
    summary = store_summary(open_store(store))
    if as_json:
        print_json({"outcome": report.outcome, "call_seconds": round(report.seconds, 3), **summary})
        return
    if report.outcome == "complete":
        out().print(f"{store} is complete already: nothing to do")
        return
    rate = report.tokens / max(report.seconds, 1e-9)
    out().print(
        f"{store}: {summary['rows_total']:,} rows of {summary['rows']} × {len(summary['layers'])} layers × "
        f"{summary['hidden']}, {summary['bytes'] / 1e6:,.0f} MB, {report.seconds:.1f} s ({rate:,.0f} sub-tokens/s)"
    )
