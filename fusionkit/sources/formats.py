"""The table of file formats: suffix → reader, which gives the file's examples in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from fusionkit.sources.conll import read_conll
from fusionkit.sources.delimited import read_csv, read_tsv
from fusionkit.sources.jsonl import read_jsonl
from fusionkit.sources.parquet import read_parquet

Formats = dict[str, Callable[[Path], Iterator[pa.RecordBatch]]]
FORMATS: Formats = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_jsonl,
    ".parquet": read_parquet,
    ".txt": read_conll,
    ".conll": read_conll,
    ".iob": read_conll,
    ".iob2": read_conll,
    ".bio": read_conll,
}
