"""The frozen encoder: loading, identity, running. All of stage one's use of ``transformers`` is here."""

from fusionkit.encoder.loading import load_encoder
from fusionkit.encoder.model import Encoder, Tokenized

__all__ = ["Encoder", "Tokenized", "load_encoder"]
