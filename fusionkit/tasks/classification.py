"""Sequence classification: one label an example (intent, sentiment, topic)."""

from fusionkit.heads.table import heads_of
from fusionkit.metrics import label_scores
from fusionkit.tasks.task import Task

CLASSIFICATION = Task("classification", "example", heads_of("classification"), needs_pair=False, scores=label_scores)
