"""Masked language modelling: the sub-token behind each mask, told from the fused state in its place."""

from fusionkit.metrics import language_model_scores
from fusionkit.tasks.task import Task

MLM = Task("mlm", "row", ("lm-head", "lm-head-trained"), needs_pair=False, scores=language_model_scores)
