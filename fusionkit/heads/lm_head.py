"""The encoder's own LM head over fused states: frozen (``lm-head``), or trained further.

The formula is in :mod:`fusionkit.lm_head`. Dropout acts on the fused state.
"""

from __future__ import annotations

from torch import Tensor, nn

from fusionkit.heads.softmax import Softmax
from fusionkit.lm_head import SHAPES, LmHead, lm_scores


class LmScore(nn.Module):
    """``[n, d]`` → ``[n, V]``, each row alone.

    Args:
        head: the initial weights. trained: train them; frozen ones are shared, and are not saved with a run.
    """

    def __init__(self, head: LmHead, trained: bool) -> None:
        super().__init__()
        self.activation, self.layer_norm_eps = head.activation, head.layer_norm_eps
        for name, weight in head.weights.items():
            if trained:
                self.register_parameter(_attribute(name), nn.Parameter(weight.clone()))
            else:
                self.register_buffer(_attribute(name), weight, persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        """``[n, d]`` → ``[n, V]``."""
        weights = {name: getattr(self, _attribute(name)) for name in SHAPES}
        return lm_scores(states, weights, self.activation, self.layer_norm_eps)


def build_lm_head(name: str, head: LmHead, dropout: float) -> Softmax:
    """One of :data:`fusionkit.heads.LM_HEADS`: the sub-token of each row, trained by cross-entropy."""
    return Softmax(nn.Sequential(nn.Dropout(dropout), LmScore(head, trained=name == "lm-head-trained")))


def _attribute(name: str) -> str:
    return name.replace(".", "_")
