"""The contract of every fusion and every head, as functions: for fusionkit's own and for yours.

    from fusionkit.testing import check_fusion

    def test_my_fusion_keeps_the_contract() -> None:
        check_fusion(MyFusion, parameters=lambda layers, hidden: layers + 1)

A check raises AssertionError with what was expected. ``FUSION_CHECKS`` and ``HEAD_CHECKS`` hold the single checks,
for ``pytest.mark.parametrize``; each takes a case.
"""

from fusionkit.testing.fusion_checks import FUSION_CHECKS, FusionCase, check_fusion
from fusionkit.testing.head_checks import HEAD_CHECKS, HeadCase, check_head

__all__ = ["FUSION_CHECKS", "HEAD_CHECKS", "FusionCase", "HeadCase", "check_fusion", "check_head"]
