"""Tasks: one table of them all."""

from fusionkit.tasks.joint import ALONE, SHORT, parts_of, tasks_of
from fusionkit.tasks.table import TASKS
from fusionkit.tasks.task import UNSEEN, Task

__all__ = ["ALONE", "SHORT", "TASKS", "UNSEEN", "Task", "parts_of", "tasks_of"]
