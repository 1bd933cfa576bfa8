"""Sentence-pair classification: one label a pair (paraphrase, entailment)."""

from fusionkit.heads.table import heads_of
from fusionkit.metrics import label_scores
from fusionkit.tasks.task import Task

PAIR_CLASSIFICATION = Task(
    "pair-classification", "example", heads_of("pair-classification"), needs_pair=True, scores=label_scores
)
