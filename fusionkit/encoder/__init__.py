"""The frozen encoder: loading, identity, running. All of stage one's use of ``transformers`` is here."""

from fusionkit.encoder.loading import load_again, load_encoder
from fusionkit.encoder.model import Encoder, Loading, Tokenized

__all__ = ["Encoder", "Loading", "Tokenized", "load_again", "load_encoder"]
