"""Sentence-pair classification: one label a pair (paraphrase, entailment)."""

from fusionkit.metrics import label_scores
from fusionkit.tasks.task import Task

PAIR_CLASSIFICATION = Task(
    "pair-classification", "example", ("classifier", "esim"), needs_pair=True, scores=label_scores
)
