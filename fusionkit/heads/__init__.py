"""Heads: one file a head, one table of them all."""

from fusionkit.heads.table import HEADS, SEQUENCES, Head, build_head, decides_by_softmax, reads_sequences

__all__ = ["HEADS", "SEQUENCES", "Head", "build_head", "decides_by_softmax", "reads_sequences"]
