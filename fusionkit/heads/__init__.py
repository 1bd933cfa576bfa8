"""Heads, and one table of them all."""

from fusionkit.heads.table import (
    HEADS,
    LM_HEADS,
    REGISTRY,
    Head,
    HeadEntry,
    build_head,
    decides_by_softmax,
    decides_rows_alone,
    each_head,
    gives_numbers,
    head_entry,
    heads_of,
    reads_sequences,
    sequences_of,
    suits,
)

__all__ = [
    "HEADS",
    "LM_HEADS",
    "REGISTRY",
    "Head",
    "HeadEntry",
    "build_head",
    "decides_by_softmax",
    "decides_rows_alone",
    "each_head",
    "gives_numbers",
    "head_entry",
    "heads_of",
    "reads_sequences",
    "sequences_of",
    "suits",
]
