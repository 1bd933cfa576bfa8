"""Intervals, tests of paired differences and corrections for many comparisons: arrays in, numbers out."""

from fusionkit.statistics.corrections import CORRECTIONS, corrected
from fusionkit.statistics.intervals import LEVEL
from fusionkit.statistics.paired import TESTS

__all__ = ["CORRECTIONS", "LEVEL", "TESTS", "corrected"]
