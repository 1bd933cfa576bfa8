"""Masked language modelling: the sub-token behind each mask, told from the fused state in its place."""

from fusionkit.heads.table import LM_HEADS
from fusionkit.metrics import language_model_scores
from fusionkit.tasks.task import Task

MLM = Task("mlm", "row", LM_HEADS, needs_pair=False, scores=language_model_scores)
