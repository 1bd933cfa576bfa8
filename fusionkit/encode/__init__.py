"""Stage one: a source through the frozen encoder into a store."""

from typing import TYPE_CHECKING

from fusionkit.lazy import lazily

if TYPE_CHECKING:
    from fusionkit.encode.job import EncodeProgress, EncodeReport
    from fusionkit.encode.pipeline import encode

__all__ = ["EncodeProgress", "EncodeReport", "encode"]

# They load torch and transformers.
__getattr__ = lazily(
    __name__,
    {"fusionkit.encode.job": ("EncodeProgress", "EncodeReport"), "fusionkit.encode.pipeline": ("encode",)},
)
