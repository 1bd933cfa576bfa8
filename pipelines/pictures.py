"""Pictures of the documents, drawn over the records of docs/records as ``fusionkit run`` draws them over runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fusionkit.io.files import write_durably
from fusionkit.report.render import draw, write_figures
from fusionkit.report.report_data import read_report_data
from fusionkit.runs.folder import RunsFolder
from fusionkit.runs.records_file import write_taken


def draw_picture(
    figure: str, records: Sequence[Mapping[str, Any]], encoding: Mapping[str, Mapping[str, Any]], out: Path
) -> bool:
    """Draw one figure (:data:`fusionkit.report.figures.FIGURES`) over some finished records; False where ``out`` has it
    already.

    Args:
        records: of :func:`fusionkit.runs.records_file.read_records`. encoding: by a store's digest, ``seconds`` by
            split, as the head of a file of records has them. out: a file named ``.png`` or ``.svg``.

    Raises:
        UsageError: an unknown figure, or records that have no data for it.
    """
    with TemporaryDirectory() as scratch:
        folders = []
        for name in dict.fromkeys(record["sweep"] for record in records):
            folder = RunsFolder(Path(scratch) / "runs" / name)
            folders.append(folder.path)
            for record in records:
                if record["sweep"] == name:
                    write_taken(folder, record)
        seconds = {digest: each["seconds"] for digest, each in encoding.items()}
        study = replace(read_report_data(folders), encode_seconds=seconds)
        drawn = write_figures(draw(study, [figure]), Path(scratch))
        [content] = [path.read_bytes() for path in drawn if path.suffix == out.suffix]
    if out.is_file() and out.read_bytes() == content:
        return False
    write_durably(out, content)
    return True
