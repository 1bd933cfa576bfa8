"""What can be known before any work: whether sources open, and have the columns that sweeps learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusionkit.errors import unknown_name
from fusionkit.report.altair import altair, vl_convert
from fusionkit.sources import guess_columns
from fusionkit.study.encode_step import encode_options, open_data
from fusionkit.study.fit_step import SweepFit
from fusionkit.study.steps import errors_at
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
        missing = [source for source in sweep.sources if source in columns]
        if not missing and not sweep.begins:  # one that begins from others is known when these are done
            fittings[name].sweep  # noqa: B018
        labels = {label for block in sweep.blocks for label in str(block.get("label") or "").split(",") if label}
        for source in missing:
            for label in labels - set(columns[source]):
                with errors_at(f"{sweep.place}, sweep {name}"):
                    raise unknown_name(f"column of source {source!r}", label, columns[source])


def columns_of(source: SourceStep) -> list[str]:
    """The columns of a source, its texts found as an encode would find them.

    Raises:
        UsageError, DataError: it cannot be read, or nothing in it is a text.
    """
    options = encode_options(source)
    with errors_at(f"{source.place}, source {source.name}"):
        opened = open_data(source)
        guess_columns(opened, text=options["text"], pair=options["pair"], tokens=options["tokens"])
    return list(next(iter(opened.splits.values())).column_names)
