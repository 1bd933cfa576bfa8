"""Tasks: one file a task, one table of them all."""

from fusionkit.tasks.classification import CLASSIFICATION
from fusionkit.tasks.joint import JOINT
from fusionkit.tasks.mlm import MLM
from fusionkit.tasks.pair_classification import PAIR_CLASSIFICATION
from fusionkit.tasks.regression import REGRESSION
from fusionkit.tasks.tagging import TAGGING
from fusionkit.tasks.task import Task

TASKS = {task.name: task for task in (CLASSIFICATION, PAIR_CLASSIFICATION, TAGGING, REGRESSION, JOINT, MLM)}

__all__ = ["TASKS", "Task"]
