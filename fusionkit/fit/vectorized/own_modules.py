"""Whether a user's own fusion or head can be stacked. Its code does not show that, so it is tried on a few rows.

Two copies with different weights are computed by ``torch.func.vmap`` and one after another. Where vmap raises an error
or gives other numbers, runs are trained one after another over the same minibatch, to the same weights in more time.
"""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fusionkit.errors import StoppedError
from fusionkit.fit.model.fused import FusedModel
from fusionkit.specs import ONE_TOKEN

LENGTHS = (2, 1, 3, 2)  # rows of each tried sequence; an even number of sequences, as models of pairs need
CLOSE = 1e-4
OURS = ("fusionkit.", "torch.")
_tried: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def can_stack_own(model: FusedModel) -> bool:
    """True for parts of fusionkit and of torch that are known, and for others that give the same numbers when they are
    stacked.
    """
    # A stack would make two weights of one with two names.
    if len(list(model.named_parameters(remove_duplicate=False))) != len(list(model.parameters())):
        return False
    if all(map(_is_known, model.modules())):
        return True
    if model not in _tried:
        _tried[model] = _stacks(model)
    return _tried[model]


def _is_known(module: nn.Module) -> bool:
    """True for fusionkit's modules, and for torch's but those that draw numbers or count, which vmap may refuse."""
    if isinstance(module, (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)):
        return type(module) is nn.Dropout
    return type(module).__module__.startswith(OURS)


def _stacks(model: FusedModel) -> bool:
    try:
        pair = [copy.deepcopy(model).cpu().float() for _ in range(2)]
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for each in pair:
                each.train()
                for module in each.modules():
                    if type(module) is nn.Dropout:
                        module.eval()  # a stack replaces these by its own
                for weights in each.parameters():
                    weights.copy_(0.3 * torch.randn(weights.shape, generator=generator))
        states = torch.randn(sum(LENGTHS), model.layers, model.hidden, generator=generator)
        offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
        asked = [_Asked(each) for each in pair]
        learned, buffers = stack_module_state(asked)
        together = vmap(lambda *own: functional_call(asked[0], own, (states, offsets)))(learned, buffers)
        before = [buffer.clone() for buffer in pair[0].buffers()]
        alone = zip(*(each(states, offsets) for each in asked), strict=True)
        # Buffers must not change: a run that has made all of its steps stays in the stack, and would count on.
        return all(map(torch.equal, before, pair[0].buffers())) and all(
            torch.allclose(found, torch.stack(expected), rtol=CLOSE, atol=CLOSE)
            for found, expected in zip(together, alone, strict=True)
        )
    except StoppedError:
        raise
    except Exception:  # vmap raises errors of many types
        return False


class _Asked(nn.Module):
    """Scores, decisions and the loss of a model in one call."""

    def __init__(self, model: FusedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
        """``[rows, layers, hidden]`` → scores, decisions and loss."""
        if self.model.pool in ONE_TOKEN:
            states, offsets = states[offsets[:-1]], torch.arange(len(offsets))
        scores = self.model(states, offsets)
        bounds = torch.arange(len(scores) + 1)
        decided = self.model.head.decode(scores, bounds)
        return scores, decided, self.model.head.loss(scores, torch.zeros_like(decided), bounds)
