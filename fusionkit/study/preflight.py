"""What can be known before any work: whether sources open, and have the columns that sweeps learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusionkit.errors import UsageError, unknown_name
from fusionkit.report.altair import altair, vl_convert
from fusionkit.sources import guess_columns, open_source
from fusionkit.study.fit_step import SweepFit
from fusionkit.study.study import SourceStep, Study


def preflight(study: Study, fittings: Mapping[str, SweepFit], done: Sequence[str]) -> None:
    """Open the sources that are not encoded yet, and expand the sweeps whose stores are there.

    Args:
        fittings: by the names of sweeps. done: names of the steps that are, those of sources among them.

    Raises:
        UsageError, DataError: what an encode or a fit would refuse.
    """
    if study.figures != () or study.report is not None:
        altair(), vl_convert()  # without them nothing could be drawn, hours from now
    columns = {name: columns_of(each) for name, each in study.sources.items() if f"encode {name}" not in done}
    for name, sweep in study.sweeps.items():
        if not set(sweep.sources) & set(columns) and not sweep.begins:
            fittings[name].sweep  # noqa: B018
            continue  # one that begins from others is known when these are done
        labels = {label for block in sweep.blocks for label in str(block.get("label") or "").split(",") if label}
        for source in sweep.sources:
            for label in labels if source in columns else ():
                if label not in columns[source]:
                    wrong = unknown_name(f"column of source {source!r}", label, columns[source])
                    raise UsageError(
                        f"{sweep.place}, sweep {name}: {wrong.what}",
                        expected=wrong.expected,
                        received=wrong.received,
                        remedy=wrong.remedy,
                    )


def columns_of(source: SourceStep) -> list[str]:
    """The columns of a source, its texts found as an encode would find them.

    Raises:
        UsageError, DataError: it cannot be read, or nothing in it is a text.
    """
    options = source.options
    try:
        opened = open_source(
            options["source"],
            config=options.get("config"),
            revision=options.get("revision"),
            lines=options.get("task") == "mlm",
        )
        guess_columns(opened, text=options.get("text"), pair=options.get("pair"), tokens=options.get("tokens"))
    except UsageError as error:
        raise UsageError(
            f"{source.place}, source {source.name}: {error.what}",
            expected=error.expected,
            received=error.received,
            remedy=error.remedy,
        ) from error
    return list(next(iter(opened.splits.values())).column_names)
