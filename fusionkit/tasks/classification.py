"""Sequence classification: one label an example (intent, sentiment, topic)."""

from fusionkit.metrics import label_scores
from fusionkit.tasks.task import Task

CLASSIFICATION = Task("classification", "example", ("classifier", "bcn"), needs_pair=False, scores=label_scores)
