"""Intervals, tests of paired differences and corrections for many comparisons: arrays in, numbers out."""

from fusionkit.statistics.corrections import CORRECTIONS, corrected
from fusionkit.statistics.intervals import INTERVALS, LEVEL
from fusionkit.statistics.paired import TESTS, PairedTest

__all__ = ["CORRECTIONS", "INTERVALS", "LEVEL", "TESTS", "PairedTest", "corrected"]
