"""``fusionkit encode``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusionkit.cli.console import JSON_OPTION, PLACE, ProgressBars, out, print_json, sigterm_flag
from fusionkit.cli.options.encode_options import encoding_options, load_inputs
from fusionkit.cli.options.work_options import cluster_options, given_cluster, print_slurm_job
from fusionkit.errors import UsageError
from fusionkit.io.places import Place
from fusionkit.plural import counted
from fusionkit.specs import parse_bytes

if TYPE_CHECKING:
    from fusionkit.cluster import ClusterSettings
    from fusionkit.encode import EncodeReport
    from fusionkit.encode.shard import Shard
    from fusionkit.encoder import Encoder


@click.command()
@encoding_options
@click.option("--out", "store", required=True, type=PLACE, help="Folder, or s3://… address.")
@click.option(
    "--overwrite", is_flag=True, help="Encode anew, in place of the store that is there; other files there are refused."
)
@click.option("--budget", help="Refuse to make a store larger than this, uncompressed, e.g. 50GB.")
@click.option("--parts", help="I/N: encode only the I-th of N shares, for array jobs; 0/N only plans.")
@cluster_options
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes of the cluster. [default: one per GPU, or per core; with slurm 1]",
)
@JSON_OPTION
def encode(
    store: Place,
    overwrite: bool,
    budget: str | None,
    parts: str | None,
    cluster: str | None,
    cluster_config: Path | None,
    print_job: bool,
    workers: int | None,
    device: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Encode SOURCE once and keep every layer's states.

    SOURCE is a file (CSV, TSV, JSONL, Parquet, CoNLL columns), a folder of train/validation/test files, a
    folder that datasets saved, or a hub id. Run again after an interruption, it goes on where it stopped.
    """
    limit = parse_bytes(budget) if budget else None
    settings = given_cluster(cluster, cluster_config, device, workers)
    if print_job:
        print_slurm_job(settings)
        return
    if workers and settings is None:
        raise UsageError(
            "--workers counts the processes of a cluster", remedy="add --cluster local, or leave --workers out"
        )
    from fusionkit.cli.info import store_summary
    from fusionkit.encode.publish import refuse_foreign, resolved

    shard = given_shard(parts, overwrite, settings is not None)
    store = resolved(store)  # a draft replaces the folder, and "." would still name the old one
    refuse_foreign(store)
    report = encode_into(store, options, device, settings, overwrite=overwrite, limit=limit, shard=shard)
    from fusionkit.store import open_store

    shared = report.outcome == "share"
    summary: dict[str, Any] = {"tokens": report.tokens} if shared else store_summary(open_store(store))
    if as_json:
        print_json({"outcome": report.outcome, "call_seconds": round(report.seconds, 3), **summary})
        return
    if shared:
        out().print(f"{store}: share {parts} is done; the store is complete when all shares are")
        return
    if report.outcome == "complete":
        out().print(f"{store} is complete already: nothing to do")
        return
    rate = report.tokens / max(report.seconds, 1e-9)
    out().print(
        f"{store}: {counted(summary['rows_total'], 'row')} of {summary['rows']} × "
        f"{counted(len(summary['layers']), 'layer')} × {summary['hidden']}, "
        f"{summary['bytes'] / 1e6:,.0f} MB, {report.seconds:.1f} s ({rate:,.0f} sub-tokens/s)"
    )


def encode_into(
    store: Place,
    options: Mapping[str, Any],
    device: str,
    settings: ClusterSettings | None,
    *,
    overwrite: bool = False,
    limit: int | None = None,
    shard: Shard | None = None,
    load: Callable[..., Encoder] | None = None,
) -> EncodeReport:
    """Encode by this process or by a cluster; SIGTERM ends it between two blocks of the plan or two parts.

    Args:
        limit: the most bytes of the store. load: used instead of :func:`fusionkit.encoder.load_encoder`.
    """
    with ProgressBars() as bars, sigterm_flag() as stop, ExitStack() as stack:
        # Workers and other shares have the GPUs: to plan for them takes only the encoder's identity and tokenizer.
        planned_for = "cuda" if device.startswith("cuda") and shard is not None and shard.number == 0 else None
        own_device = device if settings is None and planned_for is None else "cpu"
        source, columns, spec, encoder = load_inputs(bars.say, {**options, "device": own_device}, load)
        from fusionkit.encode.job import make_job
        from fusionkit.encode.open_plan import is_finished, refuse_taken
        from fusionkit.encode.pipeline import encode_job
        from fusionkit.encode.shard import encode_shard

        job, run_parts = make_job(source, columns, store, spec, encoder, bars, limit, planned_for), None
        # Workers are started last, so not for an unreadable source, a complete store or one that is refused.
        if settings is not None and (overwrite or not is_finished(job)):
            refuse_taken(job, overwrite)
            from fusionkit.cluster.encode_workers import open_encode_workers

            workers = stack.enter_context(open_encode_workers(settings, device, stop))
            job = replace(job, device=workers.device)
            run_parts = workers.parts(encoder, stop, bars.note)
        if shard is not None:
            return encode_shard(job, shard, stop)
        return encode_job(job, overwrite=overwrite, run_parts=run_parts, stop=stop)


def given_shard(parts: str | None, overwrite: bool, on_cluster: bool) -> Shard | None:
    """The share that ``--parts`` names; UsageError if the text is not a share, or another option excludes it."""
    if parts is None:
        return None
    if overwrite:
        raise UsageError(
            "--parts does not go with --overwrite: each share would plan the store anew",
            remedy="remove the store, or plan it first: --parts 0/N",
        )
    if on_cluster:
        raise UsageError("--parts does not go with --cluster, which shares out all parts", remedy="choose one of them")
    from fusionkit.encode.shard import parse_shard

    return parse_shard(parts)
