"""Heads: one file a head, one table of them all."""

from fusionkit.heads.table import HEADS, Head, build_head, decides_by_softmax

__all__ = ["HEADS", "Head", "build_head", "decides_by_softmax"]
