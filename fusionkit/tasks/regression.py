"""Regression: one number an example or a pair of texts (similarity, rating)."""

from fusionkit.heads.table import heads_of
from fusionkit.metrics import number_scores
from fusionkit.tasks.task import Task

REGRESSION = Task("regression", "example", heads_of("regression"), needs_pair=False, scores=number_scores, numeric=True)
