"""Stage one: a source through the frozen encoder into a store."""

from fusionkit.encode.job import EncodeProgress, EncodeReport
from fusionkit.encode.pipeline import encode

__all__ = ["EncodeProgress", "EncodeReport", "encode"]
