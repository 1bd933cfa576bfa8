"""Finished runs in the logs of TensorBoard, MLflow and Weights & Biases, made from their records."""

from fusionkit.logs.entry import Entry, entry_of
from fusionkit.logs.logger import KINDS, Logs, check_logs

__all__ = ["KINDS", "Entry", "Logs", "check_logs", "entry_of"]
