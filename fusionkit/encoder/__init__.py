"""The frozen encoder: loading, identity, running. All of stage one's use of ``transformers`` is here."""

from typing import TYPE_CHECKING

from fusionkit.lazy import lazily

if TYPE_CHECKING:
    from fusionkit.encoder.loading import load_encoder
    from fusionkit.encoder.model import Encoder, Tokenized

__all__ = ["Encoder", "Tokenized", "load_encoder"]

# They load torch and transformers.
__getattr__ = lazily(
    __name__,
    {"fusionkit.encoder.loading": ("load_encoder",), "fusionkit.encoder.model": ("Encoder", "Tokenized")},
)
