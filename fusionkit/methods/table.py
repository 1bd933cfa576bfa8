"""The table of methods, and parsing one.

Names and their options load no torch, because help and completion ask for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

from fusionkit.errors import UsageError, unknown_name
from fusionkit.options.spelling import named, options_fault, outline, parse, spell
from fusionkit.registry import Registry
from fusionkit.specs import ENCODER, FROZEN

if TYPE_CHECKING:
    from fusionkit.methods.attached import Attached
    from fusionkit.methods.structure import Structure

Shared = Literal["encoder", "method", "nothing", "alone"]


class Method(Protocol):
    """The protocol of a method, built as ``Method(**options)``; a plain class whose docstring says ``Trains:``.

    A method that leaves lower layers as they are may have ``lowest_layer(depth)``: the lowest layer that it touches in
    an encoder of ``depth`` layers. Its runs may then start from a stored layer below. One that touches a layer and
    leaves the states that this layer gives to the text as they are has ``lowest_changed(depth)`` too.
    """

    def attach(self, model: Any, structure: Structure) -> Attached:
        """Put the method in effect in a model whose parameters are all frozen.

        Args:
            model: a ``transformers.PreTrainedModel``, changed in place. structure: its layers and places.

        Raises:
            UsageError: this encoder cannot take the method.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """One row: what is known of a method without an encoder.

    Attributes:
        path: ``MODULE:CLASS``. summary: a sentence for help. paper: its source. rates: four rates for a grid, the
            default first. epochs: the paper's, or what is usual.
        starts_as_encoder: the output is the encoder's own until the first step. merges: what it trains can be made part
            of the encoder's weights, so that plain transformers loads the result.
        shared: what several tasks over stores of their own have in common: ``encoder``, the encoder that it trains
            (each task has the parts that it adds for itself); ``method``, the frozen encoder alone (each has all that
            the method trains for itself); ``nothing``, where it trains nothing; ``alone``, where it cannot train
            several tasks in turn and is refused.
        own_weights: it trains weights that the encoder has, not only parts that it adds.
    """

    path: str
    summary: str
    paper: str
    rates: tuple[float, ...]
    epochs: int = 3
    starts_as_encoder: bool = True
    merges: bool = False
    shared: Shared = "method"
    own_weights: bool = False


METHODS = {
    "frozen": MethodEntry(
        path="fusionkit.methods.frozen:Frozen",
        summary="Train the fusion and the head alone.",
        paper="Cao et al. (2022)",
        rates=(),
        merges=True,
        shared="nothing",
    ),
    "full": MethodEntry(
        path="fusionkit.methods.full:Full",
        summary="Train all weights of the encoder.",
        paper="Devlin et al. (2019)",
        rates=(2e-5, 3e-5, 5e-5, 1e-4),
        merges=True,
        shared="encoder",
        own_weights=True,
    ),
    "top": MethodEntry(
        path="fusionkit.methods.top:Top",
        summary="Train the last m layers of the encoder.",
        paper="Houlsby et al. (2019)",
        rates=(2e-5, 3e-5, 5e-5, 1e-4),
        merges=True,
        shared="encoder",
        own_weights=True,
    ),
    "bitfit": MethodEntry(
        path="fusionkit.methods.bitfit:BitFit",
        summary="Train the biases of the encoder's layers.",
        paper="Ben Zaken et al. (2022)",
        rates=(4e-4, 1e-4, 1e-3, 3e-3),
        merges=True,
        own_weights=True,
    ),
    "houlsby": MethodEntry(
        path="fusionkit.methods.houlsby:Houlsby",
        summary="Train adapters of width m behind attention and feed-forward network.",
        paper="Houlsby et al. (2019)",
        rates=(3e-4, 1e-4, 1e-3, 3e-3),
        epochs=10,
    ),
    "lora": MethodEntry(
        path="fusionkit.methods.lora:Lora",
        summary="Train a map of rank r beside those of query and value.",
        paper="Hu et al. (2022)",
        rates=(5e-4, 2e-4, 1e-3, 2e-3),
        merges=True,
    ),
    "ia3": MethodEntry(
        path="fusionkit.methods.ia3:Ia3",
        summary="Train factors of keys, values and the feed-forward network's inner units.",
        paper="Liu et al. (2022, T-Few)",
        rates=(3e-3, 1e-3, 1e-2, 3e-2),
        merges=True,
    ),
    "prompt": MethodEntry(
        path="fusionkit.methods.prompt:Prompt",
        summary="Train P vectors in front of the embeddings.",
        paper="Lester et al. (2021)",
        rates=(1e-2, 1e-3, 3e-3, 3e-2),
        epochs=10,
        starts_as_encoder=False,
    ),
    "prefix": MethodEntry(
        path="fusionkit.methods.prefix:Prefix",
        summary="Train P keys and values in front of each layer's own.",
        paper="Liu et al. (2022, P-tuning v2)",
        rates=(1e-2, 5e-3, 2e-2, 5e-2),
        epochs=10,
        starts_as_encoder=False,
    ),
    "diff-prune": MethodEntry(
        path="fusionkit.methods.diff_prune:DiffPrune",
        summary="Train a difference of all weights and keep a small share of it.",
        paper="Guo et al. (2021)",
        rates=(5e-5, 2e-5, 1e-4, 2e-4),
        merges=True,
        shared="alone",
        own_weights=True,
    ),
    "pals": MethodEntry(
        path="fusionkit.methods.pals:Pals",
        summary="Train the encoder with projected attention of width h beside each layer.",
        paper="Stickland and Murray (2019)",
        rates=(2e-5, 3e-5, 5e-5, 1e-4),
        shared="encoder",
        own_weights=True,
    ),
    "low-rank": MethodEntry(
        path="fusionkit.methods.low_rank:LowRank",
        summary="Train the encoder with a bottleneck of width h beside each layer.",
        paper="Stickland and Murray (2019)",
        rates=(2e-5, 3e-5, 5e-5, 1e-4),
        shared="encoder",
        own_weights=True,
    ),
}
REGISTRY = Registry("method", "fusionkit.methods", {name: entry.path for name, entry in METHODS.items()})


@dataclass(frozen=True)
class MethodSpec:
    """A method with all of its options. Equal methods are equal, and have one spelling.

    Attributes:
        name: of the table, of an installed package or an import path. options: all, defaults included.
    """

    name: str
    spelling: str
    options: Mapping[str, Any] = field(compare=False, hash=False)

    def __str__(self) -> str:
        return self.spelling

    @property
    def entry(self) -> MethodEntry:
        """Its row of the table."""
        return method_entry(self.name)

    @property
    def trains_encoder(self) -> bool:
        """Whether it trains the encoder as a whole or its last layers, beside parts that it may add."""
        return self.entry.shared == ENCODER and self.options.get(ENCODER) != FROZEN

    @property
    def rates(self) -> tuple[float, ...]:
        """The rates of a grid, the default first; with ``encoder=frozen`` those of adapters: only added parts train."""
        added = self.entry.shared == ENCODER and not self.trains_encoder
        return METHODS["houlsby"].rates if added else self.entry.rates

    def lowest_layer(self, depth: int) -> int:
        """The lowest layer that the method touches in an encoder of ``depth`` layers, as :class:`Attached` has it; 0
        where its class does not define it.

        Raises:
            UsageError: its option names layers that are not there.
        """
        told = getattr(self.build(), "lowest_layer", None)
        return told(depth) if callable(told) else 0

    def lowest_changed(self, depth: int) -> int:
        """The lowest layer whose states of the text change with what the method trains.

        Raises:
            UsageError: its option names layers that are not there.
        """
        told = getattr(self.build(), "lowest_changed", None)
        return told(depth) if callable(told) else self.lowest_layer(depth)

    def build(self) -> Method:
        """The method with these options.

        Raises:
            UsageError: an option is out of range.
        """
        made: Method = method_class(self.name)(**self.options)
        return made


@cache
def parse_method(text: str) -> MethodSpec:
    """A method and its options, ``houlsby:64,share=layer``.

    Raises:
        UsageError: an unknown name or option (with the nearest), a value that does not fit, or a module that cannot be
            imported.
    """
    name, options = REGISTRY.split(text)
    made = method_class(name)
    values = parse("method", name, made, options)
    spec = MethodSpec(name, spell(name, made, values), values)
    spec.build()
    return spec


@cache
def method_entry(name: str) -> MethodEntry:
    """The row of a method; of one that is not in the table, its class's ``entry``."""
    found: MethodEntry = METHODS[name] if name in METHODS else method_class(name).entry
    return found


@cache
def method_class(name: str) -> type[Any]:
    """The class behind a name of the table, of an installed package or an import path.

    Raises:
        UsageError: the name is unknown, its module cannot be imported, or the object there is no method.
    """
    if name not in REGISTRY.names() and ":" not in name:
        raise unknown_name("method", name, [usage.partition("[")[0] for usage in REGISTRY.usages.values()])
    found = REGISTRY.load(name).value
    if REGISTRY.is_own(name) and (fault := _fault(found)) is not None:
        raise UsageError(
            f"{name!r} is no method: {fault}",
            expected="a class, built as (*, options), with attach(model, structure) and entry, a MethodEntry",
            received=f"{found!r}",
            remedy="see fusionkit.methods.table.Method",
        )
    return found  # type: ignore[no-any-return]


def _fault(found: Any) -> str | None:
    """The reason why a user's class is not a method, or None."""
    if not (isinstance(found, type) and callable(getattr(found, "attach", None))):
        return "it is no class with attach"
    if not isinstance(entry := getattr(found, "entry", None), MethodEntry):
        return "its entry is no MethodEntry"
    if not entry.rates:
        return "its entry has no rates"
    return options_fault(found)


def method_named(name: str) -> str:
    """A name as help shows it, followed by its argument: ``top:m``."""
    return named(name, outline(METHODS[name].path))
