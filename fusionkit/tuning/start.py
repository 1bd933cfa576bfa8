"""A run's start from a stored layer, judged in advance: the work that it saves, and the error of the stored states.

    layer passes per example   from the text  L + m (1 + t)        from layer k  (L − k) + m (1 + t)
    encoding is paid after     (L N − k n_t) / (k (n + n_v)) epochs

Symbols: ``L`` the encoder's layers; ``m`` the layers from the lowest that the method touches to the last; ``t`` the
share of these m layers' weights that trains. A layer takes one pass forward. Each of the m layers takes one pass back
for the gradients of states, and t passes for those of weights. ``N`` the store's examples, ``n`` those that a run
learns from, ``n_v`` those that it scores per epoch, ``n_t`` those of test.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from fusionkit.dataset.stores import Stores, stores_of
from fusionkit.machine.devices import CPU
from fusionkit.specs import RunSpec
from fusionkit.tuning.encoder import load_tuned
from fusionkit.tuning.live import LiveStates
from fusionkit.tuning.passes import FromText
from fusionkit.tuning.tokens import tokens_of
from fusionkit.tuning.upper_layers import UpperLayers

EXAMPLES = 4  # the number of examples whose stored states are compared with live ones


@dataclasses.dataclass(frozen=True)
class Start:
    """A start from a stored layer.

    Attributes:
        layer: k. depth: L. text, stored: layer passes per training example, from the text and from layer k. off:
            ``|z − ẑ| / |z|`` over a few examples, with the live states z and the stored states ẑ of that layer.
    """

    layer: int
    depth: int
    text: float
    stored: float
    off: float

    def paid_after(self, learned: int, scored: float, tested: int, encoded: int) -> float:
        """The number of epochs after which encoding ``encoded`` examples has paid for itself."""
        return max(self.depth * encoded - self.layer * tested, 0) / (self.layer * max(learned + scored, 1))


def start_of(store: Stores, method: str, layer: int) -> Start:
    """The start of a method's runs from a stored layer.

    Raises:
        EncoderError: the encoder cannot be loaded, or is not the store's.
        UsageError: the encoder cannot take the method, or cannot start from that layer.
    """
    first = stores_of(store)[0]
    spec = RunSpec(store="", task="", label="", fusion="last", head="", method=method)
    with torch.random.fork_rng(devices=[]):
        tuned = load_tuned(first, spec, CPU)
    attached, structure = tuned.attached, tuned.attached.structure
    UpperLayers(tuned.encoder, attached, layer)
    above = structure.layers[attached.lowest_layer - 1 :]
    weights = sum(weights.numel() for module in above for weights in module.parameters())
    back = len(above) * (1 + min(attached.count() / max(weights, 1), 1.0))
    split = first[next(iter(first.splits))]
    live = LiveStates(FromText(tuned.encoder, tokens_of(split)), first.layers)
    rows, at = np.arange(split.token_offsets[: EXAMPLES + 1][-1]), (first.layers.index(layer),)
    with torch.no_grad():
        true, kept = live.gather(rows, at), split.hidden_states.gather(rows, at).float()  # [rows, 1, hidden]
    off = float((true - kept).norm() / true.norm()) if len(rows) else 0.0
    return Start(layer, structure.depth, structure.depth + back, structure.depth - layer + back, off)
