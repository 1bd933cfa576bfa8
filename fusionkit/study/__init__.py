"""Studies: from sources to tables, figures and a page; only missing steps are done."""

from typing import TYPE_CHECKING

from fusionkit.lazy import lazily
from fusionkit.study.read import read_study
from fusionkit.study.study import Study

if TYPE_CHECKING:
    from fusionkit.study.run import StepResult, run_study

__all__ = ["StepResult", "Study", "read_study", "run_study"]

# Loads torch, which reading a study does not need.
__getattr__ = lazily(__name__, {"fusionkit.study.run": ("StepResult", "run_study")})
