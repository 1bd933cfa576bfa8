"""The table of tasks."""

from fusionkit.tasks.classification import CLASSIFICATION
from fusionkit.tasks.mlm import MLM
from fusionkit.tasks.multi_label import MULTI_LABEL
from fusionkit.tasks.pair_classification import PAIR_CLASSIFICATION
from fusionkit.tasks.regression import REGRESSION
from fusionkit.tasks.tagging import TAGGING

TASKS = {task.name: task for task in (CLASSIFICATION, PAIR_CLASSIFICATION, TAGGING, REGRESSION, MULTI_LABEL, MLM)}
