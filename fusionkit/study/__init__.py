"""Studies: from sources to tables, figures and a page, doing only what is missing."""

from fusionkit.study.read import read_study
from fusionkit.study.run import StepResult, run_study
from fusionkit.study.study import Study

__all__ = ["StepResult", "Study", "read_study", "run_study"]
