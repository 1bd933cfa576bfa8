"""Sources: files, folders and hub ids read into splits of examples with known column roles."""

from fusionkit.sources.columns import Columns, guess_columns
from fusionkit.sources.examples import Examples
from fusionkit.sources.prepared import prepared
from fusionkit.sources.source import FORMATS, SPLITS, Source, open_source

__all__ = ["FORMATS", "SPLITS", "Columns", "Examples", "Source", "guess_columns", "open_source", "prepared"]
