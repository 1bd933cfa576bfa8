"""Adam over a run's head and what its method trains, each with its own rate.

    rate of a weight of layer k = encoder_lr · layer_decay^(L − k)          k = 0 for the embeddings

Symbols: ``L`` the encoder's layers. Decay acts on matrices of the encoder, not on its biases and layer norms, as is
usual where encoders are fine-tuned, nor on factors and gates of a method; on the head it acts as for a frozen encoder.
Source: Kingma and Ba (2015), Loshchilov and Hutter (2019); rates by layer Howard and Ruder (2018).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fusionkit.fit.train.schedule import rate_factor
from fusionkit.fit.vectorized.adam import BETAS, EPS, FUSED
from fusionkit.methods.attached import PARTS, Attached
from fusionkit.methods.per_task import OF
from fusionkit.specs import RunSpec

Group = tuple[float, float]  # rate and decay


class Optimizer:
    """One Adam for a whole run.

    Args:
        head: the parameters of fusion and head that train. attached: the method. steps: all steps of the run.
    """

    def __init__(
        self,
        spec: RunSpec,
        head: Iterable[nn.Parameter],
        attached: Attached,
        steps: int,
    ) -> None:
        self._spec, self._steps = spec, steps
        rate = spec.encoder_lr or 0.0  # frozen runs of several tasks have none
        groups: dict[Group, list[nn.Parameter]] = {}
        for weights in head:
            groups.setdefault((spec.lr, spec.weight_decay), []).append(weights)
        for name, weights in attached.trainable.items():
            decay = spec.weight_decay if weights.dim() > 1 and name.partition(OF)[0] not in attached.undecayed else 0.0
            own = attached.rates.get(name, rate * spec.layer_decay ** layers_above(attached, name))
            groups.setdefault((own, decay), []).append(weights)
        kind = torch.optim.AdamW if spec.optimizer == "adamw" else torch.optim.Adam
        made = [{"params": own, "lr": lr, "weight_decay": decay} for (lr, decay), own in groups.items()]
        self.weights = [weights for own in groups.values() for weights in own]
        fused = bool(self.weights) and self.weights[0].device.type in FUSED
        self._rates = [lr for lr, _ in groups]
        self._adam: Any = kind(made, betas=BETAS, eps=EPS, fused=fused) if made else None

    def step(self, number: int) -> None:
        """Take the step of this number, from 0, with the gradients of the weights, and clear these afterwards."""
        if self._adam is None:
            return
        if self._spec.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.weights, self._spec.clip_norm)
        factor = rate_factor(self._spec, number, self._steps)
        for group, rate in zip(self._adam.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)

    def moments(self) -> dict[str, Tensor]:
        """Adam's state: the two moments and the step count of each weight that had a gradient, by its number."""
        if self._adam is None:
            return {}
        known = ((number, self._adam.state.get(weights, {})) for number, weights in enumerate(self.weights))
        return {f"{number}/{name}": value for number, state in known for name, value in state.items()}

    def restore(self, moments: Mapping[str, Tensor]) -> None:
        """The inverse of :meth:`moments`."""
        for name, value in moments.items():
            number, _, kind = name.partition("/")
            weights = self.weights[int(number)]
            # The step count too: fused Adam keeps it on the weight's device.
            home = weights.device
            self._adam.state[weights][kind] = value.to(home)


def layers_above(attached: Attached, name: str) -> int:
    """The number of layers above a weight that trains; 0 behind the last layer, and for modules that a method added."""
    own, owner = attached.structure, name.split(".")[:-1]
    if owner[:1] == [PARTS]:
        return 0
    # Find the innermost module that is known to lie in a layer: a method may have put others inside of it.
    around = (".".join(owner[:end]) for end in range(len(owner), 0, -1))
    layer = next((found for path in around if (found := own.layer_of(attached.model.get_submodule(path)))), 0)
    return max(own.depth - layer, 0)
