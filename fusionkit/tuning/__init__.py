"""Training a run through the encoder."""
