"""Stage one: a source through the frozen encoder into a store."""

from fusionkit.encode.job import EncodeProgress, EncodeReport, encode

__all__ = ["EncodeProgress", "EncodeReport", "encode"]
