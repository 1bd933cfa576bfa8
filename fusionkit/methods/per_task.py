"""A method whose own weights several tasks have each for themselves, over one encoder.

    weights in effect for task i = shared weights ∪ own weights of task i

A task's own weights are those that the method adds where the encoder itself trains (PALs, low rank), all that train
where the encoder is frozen (adapters, biases, prefixes), and none for a method that only trains the encoder. They start
as in a run of that task alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from torch import nn

from fusionkit.errors import UsageError
from fusionkit.methods.attached import PARTS, Attached
from fusionkit.methods.table import MethodSpec

Value = TypeVar("Value")
OF = "@"  # between the names of a weight and of its task; no such name contains it


def per_task(attached: Attached, method: MethodSpec, tasks: Sequence[str]) -> Attached:
    """The same method for several tasks: ``use(task)`` puts a task's own weights into the model.

    Raises:
        UsageError: the method keeps more than weights, so that tasks cannot take turns.
    """
    refuse_turns(attached, method)
    return _in_turn(attached, own_names(attached.trainable, method), tasks)


def all_own(attached: Attached, tasks: Sequence[str]) -> Attached:
    """The same model in which each task has its own copy of all that trains, also of what tasks shared."""
    plain = {name.partition(OF)[0]: weights for name, weights in attached.trainable.items()}
    return _in_turn(dataclasses.replace(attached, trainable=plain), list(plain), tasks)


def _in_turn(attached: Attached, own: Sequence[str], tasks: Sequence[str]) -> Attached:
    model = attached.model
    homes = {name: (model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in own}
    copies = {
        task: {name: nn.Parameter(attached.trainable[name].detach().clone()) for name in own} for task in tasks
    }  # fmt: skip

    def use(task: str) -> None:
        for name, (module, leaf) in homes.items():
            module.register_parameter(leaf, copies[task][name])

    use(tasks[0])
    shared = {name: weights for name, weights in attached.trainable.items() if name not in own}
    each = {f"{name}{OF}{task}": weights for task in tasks for name, weights in copies[task].items()}
    return dataclasses.replace(attached, trainable={**shared, **each}, use=use if own else None)


def own_names(trainable: Mapping[str, object], method: MethodSpec) -> list[str]:
    """The names of the weights that each task has for itself."""
    parts_only = method.entry.shared == "encoder"
    return [name for name in trainable if not parts_only or name.split(".")[0] == PARTS]


def of_task(delta: Mapping[str, Value], task: str) -> dict[str, Value]:
    """What was trained of the encoder, named as in a run of one task: the shared weights, and the task's own."""
    parts = {name: name.partition(OF) for name in delta}
    return {parts[name][0]: value for name, value in delta.items() if parts[name][2] in ("", task)}


def refuse_turns(attached: Attached, method: MethodSpec) -> None:
    """UsageError for a method that cannot train several tasks in turn."""
    if attached.read is not None or attached.begin_step is not None or attached.penalty is not None:
        raise UsageError(
            f"the method {method} cannot train several tasks in turn: it has phases or a mask of its own",
            expected="a method whose trained weights are all that it keeps, like full, pals, houlsby or bitfit",
            received=str(method),
            remedy="train a run for each task, or choose another --method",
        )
