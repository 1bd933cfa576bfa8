"""``fusionkit encode``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fusionkit.cli.console import JSON_OPTION, Bars, out, print_json, stop_on_sigterm
from fusionkit.cli.info import store_summary
from fusionkit.encode import encode as run_encode
from fusionkit.encoder import load_encoder
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import COMPUTE_DTYPES, ROWS, STATE_DTYPES, EncodeSpec
from fusionkit.store import open_store


@click.command()
@click.argument("source")
@click.option("--out", "store", required=True, type=click.Path(path_type=Path), help="The store's folder.")
@click.option("--encoder", default="minilm", show_default=True, help="'minilm', a folder or a hub id.")
@click.option("--encoder-revision", help="Revision of a hub encoder.")
@click.option("--config", help="Configuration of a hub data set.")
@click.option("--revision", help="Revision of a hub data set.")
@click.option("--rows", type=click.Choice(ROWS), help="What a stored row is. [default: by the columns]")
@click.option("--layers", default="all", show_default=True, help="all, 0,6,12 or -4: (0 is the embeddings).")
@click.option("--dtype", type=click.Choice(STATE_DTYPES), default="float16", show_default=True)
@click.option("--compute-dtype", type=click.Choice(COMPUTE_DTYPES), default="float32", show_default=True)
@click.option("--max-length", type=int, help="Sub-tokens an example may have. [default: the encoder's limit]")
@click.option("--text", help="Column with the text. [default: guessed]")
@click.option("--pair", help="Column with the second text of a pair. [default: guessed]")
@click.option("--tokens", help="Column with lists of words. [default: guessed]")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda:0.")
@click.option("--trust-remote-code", is_flag=True, help="Let a hub encoder run its own Python code.")
@click.option("--overwrite", is_flag=True, help="Replace a store that holds something else.")
@JSON_OPTION
def encode(
    source: str,
    store: Path,
    encoder: str,
    encoder_revision: str | None,
    config: str | None,
    revision: str | None,
    text: str | None,
    pair: str | None,
    tokens: str | None,
    device: str,
    overwrite: bool,
    as_json: bool,
    **spec: Any,
) -> None:
    """Encode SOURCE once and keep every layer's states.

    SOURCE is a file (CSV, TSV, JSONL, Parquet, CoNLL columns), a folder of train/validation/test files, a
    folder that datasets saved, or a hub id. Run again after an interruption, it goes on where it stopped.
    """
    chosen = EncodeSpec(encoder=encoder, revision=encoder_revision, **spec)
    opened = open_source(source, config=config, revision=revision)
    columns = guess_columns(opened, text=text, pair=pair, tokens=tokens)
    with Bars() as bars, stop_on_sigterm() as stop:
        bars.say(f"columns: {columns}")
        loaded = load_encoder(
            encoder,
            revision=encoder_revision,
            device=device,
            compute_dtype=chosen.compute_dtype,
            words=columns.tokens is not None,
            trust_remote_code=chosen.trust_remote_code,
        )
        report = run_encode(opened, columns, store, chosen, loaded, overwrite=overwrite, progress=bars, stop=stop)
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
