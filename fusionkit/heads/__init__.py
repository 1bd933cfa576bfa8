"""Heads: one file a head, one table of them all."""

from fusionkit.heads.lm_head import LM_HEADS, lm_head
from fusionkit.heads.table import HEADS, SEQUENCES, Head, build_head, decides_by_softmax, reads_sequences

__all__ = [
    "HEADS",
    "LM_HEADS",
    "SEQUENCES",
    "Head",
    "build_head",
    "decides_by_softmax",
    "lm_head",
    "reads_sequences",
]
