"""Widths that are set by a budget: the largest with which the weights that a task has for itself stay within it.

    --method pals --method low-rank --budget-per-task 385314      over MiniLM: pals:126 and low-rank:83

The width of a method or a fusion is filled in before the spec of its run is made, so that the spec is the same as with
a width given by hand. A task's own weights are counted as ``fusionkit plan`` counts them, without heads.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fusionkit.dataset.stores import Stores, choose_tasks_of
from fusionkit.dataset.task_stores import TaskStores
from fusionkit.errors import UntrustedCodeError, UsageError
from fusionkit.fit.sweep.fusion_choices import choose_fusion
from fusionkit.fit.sweep.grid import layer_by_layer, usual_fusions
from fusionkit.fit.sweep.method_choices import options_for
from fusionkit.fit.sweep.open_widths import Count, OpenWidth, fill_width, leaves_out
from fusionkit.fusions import fusion_layers, fusion_parameters
from fusionkit.names import EVERY_LAYER
from fusionkit.options.entry import joined
from fusionkit.specs import FROZEN, parse_layers

PLAN = "fusionkit.tuning.weights_plan"


def with_widths(store: Stores, block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A block of choices without its budget: the block itself if all widths are given, else one block for each method,
    fusion and choice of layers, with the widths filled in.

    Raises:
        UsageError: a width without a budget, or one that the budget cannot set. EncoderError: the configuration of the
            store's encoder cannot be loaded.
    """
    choices = dict(block)
    budget = choices.pop("budget_per_task", None)
    if not leaves_out(block):
        yield choices
        return
    tasks = choose_tasks_of(store, joined(block.get("task")), joined(block.get("label")))
    shares_method = len(tasks) > 1 and not isinstance(store, TaskStores)
    shares_fusion = len(tasks) > 1 and block.get("joint_fusion") != "each"
    names = block.get("fusions") or usual_fusions(store)
    methods, layers = block.get("methods") or (FROZEN,), block.get("fusion_layers") or (None,)
    for method, name, chosen in itertools.product(methods, names, layers):
        fusion = layer_by_layer(store, name, FROZEN)[0]  # single layers weigh the same
        for noun, text, shared, remedy in (
            ("method", method, shares_method, "give its width, or train over a store for each task: --task multi"),
            ("fusion", fusion, shares_fusion, "give its width, or each task a fusion of its own: --joint-fusion each"),
        ):
            if shared and OpenWidth.of(noun, text):
                raise UsageError(
                    f"--budget-per-task counts the weights of one task alone, but all tasks share {noun} {text!r}",
                    expected="a method or a fusion that each task has for itself",
                    received=f"--{noun} {text}",
                    remedy=remedy,
                )
        of_fusion: Count = (lambda _: 0) if shares_fusion else partial(_fusion_weights, store, chosen, method)
        of_method: Count = (lambda _: 0) if shares_method else partial(_method_weights, store)
        method, fusion = fill_width(method, fusion, budget, of_method, of_fusion)
        # Frozen runs drop options of methods, as if the other methods were still in their block.
        own = options_for(FROZEN, choices) if method == FROZEN and {*methods} > {FROZEN} else choices
        one = {"methods": (method,), "fusions": (name if name == EVERY_LAYER else fusion,)}
        yield {**own, **one, **({} if chosen is None else {"fusion_layers": (chosen,)})}


def _method_weights(store: Stores, method: str) -> int:
    if method == FROZEN:
        return 0
    try:
        return int(plan_over(store).own(method))
    except UntrustedCodeError as error:
        raise UsageError(
            "the weights of an encoder with code of its own cannot be counted here",
            expected="widths of methods that are given",
            received=f"--method {method} with --budget-per-task",
            remedy="give the width, for example houlsby:64; `fusionkit plan --trust-remote-code` counts weights",
        ) from error


def _fusion_weights(store: Stores, chosen: str | None, method: str, fusion: str) -> int:
    name, layers = choose_fusion(store, fusion, chosen, method)
    depth = store.manifest["encoder"]["layers"]
    read = fusion_layers(name, store.layers, depth, None if layers is None else parse_layers(layers, depth))
    return fusion_parameters(name, len(read), store.hidden)


def plan_over(store: Stores, trust_remote_code: bool = False) -> Any:
    """The :class:`fusionkit.tuning.weights_plan.WeightsPlan` of a store's encoder, made once. It reads only the
    encoder's configuration, and loads transformers. Errors are those of that class.
    """
    encoder, identity = store.manifest["encoder"], store.manifest["identity"]["encoder"]
    return importlib.import_module(PLAN).plan_of(encoder["name"], identity.get("revision"), trust_remote_code)
