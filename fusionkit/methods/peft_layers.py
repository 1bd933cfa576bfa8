"""What LoRA and IA3 have in common: layers of peft in the place of some of the encoder's linear maps.

The linear maps of attention have other names in each architecture; the tables below have these names.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from torch import nn

from fusionkit.errors import UsageError
from fusionkit.methods.attached import Attached, trains
from fusionkit.methods.structure import Structure

# The last part of a linear map's name. In ModernBERT and GPT-2 one map gives all three: its name is in each table.
QUERIES = ("query", "q_lin", "query_proj", "q_proj", "q", "Wqkv", "c_attn")
KEYS = ("key", "k_lin", "key_proj", "k_proj", "k", "Wqkv", "c_attn")
VALUES = ("value", "v_lin", "value_proj", "v_proj", "v", "Wqkv", "c_attn")


def linear_names(model: Any, structure: Structure, span: range, method: str, *lists: tuple[str, ...]) -> list[str]:
    """The full names of the maps in the layers of ``span`` whose last part is in one of ``lists``.

    Raises:
        UsageError: a layer has no map with a name of one of the lists.
    """
    found: dict[str, None] = {}
    for layer in span:
        inside = set(structure.layers[layer - 1].modules())
        leaves = [name for name, module in model.named_modules() if module in inside and _is_leaf(module)]
        for names in lists:
            wanted = [name for name in leaves if name.rpartition(".")[2] in names]
            if not wanted:
                raise UsageError(
                    f"{method} cannot be used with {type(model).__name__}",
                    expected=f"a linear map in each layer with one of the names {', '.join(names)}",
                    received=", ".join(sorted({name.rpartition(".")[2] for name in leaves})),
                    remedy="choose another method, for example houlsby:64",
                )
            found.update(dict.fromkeys(wanted))
    return list(found)


def down_names(model: Any, structure: Structure, span: range) -> list[str]:
    """The names of the last linear map of the feed-forward network in some layers."""
    wanted = {structure.places[layer - 1].down for layer in span}
    return [name for name, module in model.named_modules() if module in wanted]


def attach_peft(model: Any, structure: Structure, lowest: int, config: str, **settings: Any) -> Attached:
    """Put layers of peft into the model.

    Args:
        lowest: the lowest layer that gets one. config: the name of peft's class for ``settings``.

    Raises:
        UsageError: peft is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise UsageError(
            "this method needs the package peft",
            expected="fusionkit's optional dependencies `methods`",
            received="no peft",
            remedy="pip install 'fusionkit[methods]'",
        ) from error
    model.requires_grad_(False)
    turned = any(hasattr(model.get_submodule(name), "nf") for name in settings["target_modules"])  # GPT-2's maps
    made = getattr(peft, config)(task_type=peft.TaskType.FEATURE_EXTRACTION, fan_in_fan_out=turned, **settings)
    peft.inject_adapter_in_model(made, model)
    mine = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}

    # The structure was made before peft's modules; it has the maps that they wrap.
    tuned = {each: structure.layer_of(each.get_base_layer()) for each in model.modules() if _is_tuned(each)}

    def skip(layers: Collection[int]) -> None:
        for module, layer in tuned.items():
            module._disable_adapters = layer in layers  # peft's own switch would let weights train again

    found = tuple(sorted(set(tuned.values())))
    fold, undo = (partial(_replace, model, merged=merged) for merged in (True, False))
    return Attached(model, structure, trains(model, mine), lowest, fold=fold, undo=undo, part_layers=found, skip=skip)


def _is_tuned(module: nn.Module) -> bool:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return isinstance(module, BaseTunerLayer)


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None


def _replace(model: Any, merged: bool) -> None:
    """Put the encoder's own linear maps back, with what was learned merged into them, or as they were."""
    for name, module in list(model.named_modules()):
        if _is_tuned(module):
            if merged:
                module.merge()
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, module.get_base_layer())
    if hasattr(model, "peft_config"):
        del model.peft_config
