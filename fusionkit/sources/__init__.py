"""Sources: files, folders and hub ids read into splits of examples with known column roles."""

from fusionkit.sources.columns import Columns, guess_columns, prepared
from fusionkit.sources.formats import FORMATS
from fusionkit.sources.source import SPLITS, Source, open_source

__all__ = ["FORMATS", "SPLITS", "Columns", "Source", "guess_columns", "open_source", "prepared"]
