"""Regression: one number an example or a pair of texts (similarity, rating)."""

from fusionkit.metrics import number_scores
from fusionkit.tasks.task import Task

REGRESSION = Task(
    "regression", "example", ("regressor", "esim-regressor"), needs_pair=False, scores=number_scores, numeric=True
)
