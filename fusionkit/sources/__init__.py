"""Sources: files, folders and hub ids read into splits of examples with known column roles."""

from fusionkit.sources.columns import Columns, first_example, guess_columns
from fusionkit.sources.conll_layout import column_names
from fusionkit.sources.examples import Examples
from fusionkit.sources.prepared import prepared
from fusionkit.sources.source import FORMATS, SPLITS, Source, open_source, source_from

__all__ = [
    "FORMATS", "SPLITS", "Columns", "Examples", "Source", "column_names", "first_example", "guess_columns",
    "open_source", "prepared", "source_from",
]  # fmt: skip
