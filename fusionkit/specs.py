"""Frozen, validated descriptions of work: what is encoded, what is trained.

A spec holds plain values only and does no I/O. A :class:`RunSpec` also converts to a dict and back unchanged, and has a
digest: equal digests mean the same work.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, Self

from fusionkit.errors import UsageError, unknown_name
from fusionkit.names import FLOORS
from fusionkit.options.entry import SWEPT, WHOLE, about, check_options, documented, option, options_of

ROWS = ("tokens", "words", "words-mean", "cls", "last", "mean")
PER_SEQUENCE = ("cls", "last", "mean")  # those with one row per sequence
OWN = "own"  # the LM head of the checkpoint
LM_HEAD_SOURCES = (OWN, "embeddings")
MASKED = "masked-tokens"  # rows of a store for masked LM: set by the task, not an option
POOLS = ("cls", "last", "mean", "max")
ONE_TOKEN = ("cls", "last")  # pools that read the first or the last token of a sequence alone
PAIR_FORMS = ("one", "two")
STATE_DTYPES = ("float16", "bfloat16", "float32", "int8")
COMPRESSIONS = ("none", "zstd")
SCHEDULES = ("linear", "cosine", "constant")
OPTIMIZERS = ("adamw", "adam")
CLASS_WEIGHTS = ("none", "balanced")
JOINT_FUSIONS = ("shared", "each")
MULTI = "multi"  # a run of several tasks, each over a store of its own
SAMPLINGS = ("proportional", "square-root", "uniform", "round-robin", "annealed", "temperature:T")
EPOCH_CHOICES = ("mean", "each")
PARTS = ("fusion", "head", "both")
ENCODER = "encoder"  # a choice of freeze: train only the parts that a method adds
DRAWS = ("uniform", "stratified", "nested")
GIVEN = "ids"  # a draw whose examples are given: those of earlier runs, or a list of ids
SHUFFLE, WINDOW = "shuffle", "window"
ORDERS = (SHUFFLE, WINDOW)
MDL_BLOCKS = 10  # of an online code, each coded by a run; the first of its eleven blocks needs no run
AUTO = "auto"  # the order, or the layer to start from, is chosen by the store; no RunSpec has it
FROZEN = "frozen"  # the method that trains nothing of the encoder
FLOAT32, TF32 = "float32", "tf32"
COMPUTE_DTYPES = (FLOAT32, TF32, "bfloat16", "float16")
OF_TASKS = ("sampling", "steps_per_epoch", "choose_epoch")  # only for several tasks over several stores
OF_METHODS = ("encoder_lr", "layer_decay", "encoder_dropout", "accumulate", "checkpointing", "from_layer")
TRAINING_DTYPES = (FLOAT32, "bfloat16")  # float16 would need loss scaling


def canonical_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """JSON with sorted keys and no spaces: the text that digests are taken of; ``default`` as in ``json.dumps``."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=default)


def digest_of(value: Any) -> str:
    """First 16 hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodeSpec:
    """How a source becomes a store; the source itself and the machine are not part of it."""

    encoder: str = option("minilm", "'minilm', a folder or a hub id.")
    revision: str | None = option(None, "Revision of a hub encoder.", flag="encoder-revision")
    rows: str | None = option(None, "What a stored row stands for. [default: by the columns]", choices=ROWS)
    layers: str = option("all", "all, 0,6,12 or -4: (0 is the embeddings).")
    dtype: str = option("float16", "Precision of the stored states; int8 has a scale for each row and layer.",
                        choices=STATE_DTYPES)  # fmt: skip
    compress: str = option(
        "none",
        "Compression of the stored states: the same numbers in fewer bytes, slower to write and read.",
        choices=COMPRESSIONS,
    )
    compute_dtype: str = option("float32", "Precision of the forward pass; tf32 only on NVIDIA GPUs.",
                                choices=COMPUTE_DTYPES)  # fmt: skip
    max_length: int | None = option(None, "Cut examples to N sub-tokens. [default: the encoder's limit]", ge=3,
                                    unit="sub-tokens")  # fmt: skip
    limit: int | None = option(None, "Encode only the first N examples of each split.", ge=1,
                               unit="examples", metavar="N")  # fmt: skip
    pair_as: str | None = option(
        None, "Encode a pair of texts as one sequence or as two. [default: by the encoder]", choices=PAIR_FORMS
    )
    untrained: int | None = option(
        None, "Replace the trained weights by random ones of this seed, as a control.", ge=0, lt=1 << 63, metavar="SEED"
    )
    task: str | None = option(None, "mlm: mask sub-tokens and keep only their rows.", choices=("mlm",))
    mask_seed: int = option(0, "Seed of the masked sub-tokens, with --task mlm.", ge=0, lt=1 << 63)
    mask_share: float = option(0.15, "Share of the sub-tokens to mask, with --task mlm.", gt=0, le=1)
    lm_head: str = option(
        OWN,
        "With --task mlm: the checkpoint's own LM head, or one of the input embeddings, to be trained.",
        choices=LM_HEAD_SOURCES,
    )
    trust_remote_code: bool = option(False, "Let a hub encoder run its own Python code.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.task is None:
            for name in ("mask_seed", "mask_share", "lm_head"):
                entry = options_of(EncodeSpec)[name]
                if getattr(self, name) != entry.default:
                    raise UsageError(
                        f"--{entry.flag} does nothing without --task mlm",
                        remedy=f"add --task mlm or drop --{entry.flag}",
                    )
        elif self.untrained is not None and self.lm_head == OWN:
            raise UsageError("--task mlm needs a trained LM head", received=f"--untrained {self.untrained}",
                             remedy="leave --untrained out, or choose --lm-head embeddings")  # fmt: skip
        elif self.rows is not None:
            raise UsageError(
                f"--task mlm keeps the rows of masked sub-tokens, not of {self.rows}", remedy="leave --rows out"
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The spec of options of ``fusionkit encode``, by parameter; options about the source are ignored."""
        known = options_of(cls).values()
        return cls(**{entry.name: options[entry.parameter] for entry in known if entry.parameter in options})


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One head trained once. A new training option needs an entry here, the code that uses it, and a test."""

    store: str = field(metadata=about("Digest of the store's identity."))
    mix: str | None = option(
        None,
        "Stores that are trained on together, or a share of one: digests with shares, 3f…,a0…:5%, in order; store "
        "is the first. None is the whole of store.",
        later=True,
    )
    evaluate_on: str | None = option(
        None,
        "Digests of the stores to judge by, the first of which chooses the epoch; None is the last one that is "
        "trained on.",
        later=True,
    )
    task: str = field(metadata=about("The task's name; several tasks have names, topic=classification,slots=tagging."))
    label: str = field(metadata=about("The column it learns; of several tasks one each, category,slots."))
    method: str = option(FROZEN, "How the encoder is trained: not at all (frozen), or by a method.",
                         lists=SWEPT, parameter="methods", later=True)  # fmt: skip
    encoder_lr: float | None = option(
        None,
        "Learning rate of the weights that the method trains.",
        gt=0,
        lt=100,
        lists=SWEPT,
        parameter="encoder_lrs",
        later=True,
    )
    fusion: str = field(metadata=about("A name from the table of fusions with its options, dwatt:scale=yes."))
    fusion_layers: str | None = option(None, "The layers that the fusion reads where they were chosen, like 0,3,6.",
                                       pattern="[0-9]+(,[0-9]+)*", example="layer indices like 0,3,6",
                                       later=True)  # fmt: skip
    head: str = field(metadata=about("A name from the table of heads; of several tasks one each, classifier+tagger."))
    pool: str | None = option(
        None,
        "How the fused rows of a text become one vector. [default: mean, last or cls by the encoder; over words, mean]",
        choices=POOLS,
    )
    shots: int | None = option(None, "Examples per class to draw. [default: all of train]", ge=1, lists=SWEPT)
    draw: str = option("uniform", "How the examples of --shots are drawn.", choices=DRAWS, later=True)
    draw_ids: str | None = option(None, "Digest of the ids of a draw that was given.", later=True)
    data_seed: int = option(0, "Sets the draw and the order of minibatches.", ge=0, lt=1 << 63)
    init_seed: int = option(0, "Sets initial weights and dropout.", ge=0, lt=1 << 63)
    lr: float = option(2e-3, "Learning rate.", gt=0, lt=100, lists=SWEPT, parameter="lrs")
    epochs: int = option(10, "Passes over train; a --method has its own default, 3 or 10.", ge=1, lists=SWEPT)
    max_steps: int | None = option(
        None,
        "Train for N steps, instead of --epochs; the schedule runs over these. [default: by --epochs]",
        ge=1,
        metavar="N",
        lists=SWEPT,
        later=True,
    )
    batch_size: int = option(32, "Examples per step.", ge=1, lists=SWEPT, parameter="batch_sizes")
    optimizer: str = option("adamw", "Weight decay acts on the weights (adamw) or is an L2 term of the loss (adam).",
                            choices=OPTIMIZERS, later=True)  # fmt: skip
    schedule: str = option(
        "linear",
        "How the rate changes over the steps: falls to 0 (linear, cosine) or stays (constant).",
        choices=SCHEDULES,
    )
    warmup: float = option(0.0, "Share of the steps over which the rate first rises from 0; with a --method 0.1.",
                           ge=0, lt=1, unit="a share of the steps", later=True)  # fmt: skip
    weight_decay: float = option(0.0, "Weight decay of the optimizer; with full, top, pals, low-rank 0.01.", ge=0)
    clip_norm: float | None = option(None, "Scale gradients down to this norm. [default: never]", gt=0, later=True)
    dropout: float = option(0.0, "Dropout rate inside a head.", ge=0, lt=1)
    label_smoothing: float = option(0.0, "Share of each target that is spread evenly over all classes.", ge=0, lt=1,
                                    later=True)  # fmt: skip
    class_weights: str = option("none", "balanced weighs each class by the inverse of its frequency in train.",
                                choices=CLASS_WEIGHTS, later=True)  # fmt: skip
    patience: int | None = option(None, "Stop after N epochs without a better validation score. [default: never]", ge=1,
                                  unit="epochs", metavar="N", later=True)  # fmt: skip
    validate_on: int | None = option(
        None,
        "Score only this much of validation to choose the epoch. [default: all]",
        ge=1,
        unit="examples",
        later=True,
    )
    validate_every: int = option(1, "Score validation after every N-th epoch and the last.", ge=1, unit="epochs",
                                 metavar="N", later=True)  # fmt: skip
    compute_dtype: str = option("float32",
                                "Precision of matrix products in training; weights and scores are float32.",
                                choices=TRAINING_DTYPES, later=True)  # fmt: skip
    order: str = option(SHUFFLE, "Shuffle all of train, or stream it in windows of a few chunks.", choices=ORDERS,
                        later=True)  # fmt: skip
    control: bool = option(False, "Learn control labels: a fixed random label a word type, or a text.", later=True)
    mdl: int | None = option(None, "Learn the first N blocks of an online code and code the next one.", ge=1,
                             le=MDL_BLOCKS, later=True)  # fmt: skip
    joint_fusion: str = option(
        "shared",
        "Whether the heads of several tasks share one fusion or have one each.",
        choices=JOINT_FUSIONS,
        later=True,
    )
    task_stores: str | None = option(None, "Digests of the stores of several tasks, in their order, where each has its "
                                     "own examples.", later=True)  # fmt: skip
    task_batches: str | None = option(None, "Examples of a step of each task, in their order; 0 is that of all.",
                                      pattern="[0-9]+(,[0-9]+)*", example="numbers like 32,16",
                                      later=True)  # fmt: skip
    sampling: str = option(
        "annealed",
        f"How each step's task is chosen, with several tasks: {', '.join(SAMPLINGS)}.",
        pattern="proportional|square-root|uniform|round-robin|annealed|"
        r"temperature:(?=[0-9.]*[1-9])([0-9]+(\.[0-9]*)?|\.[0-9]+)",
        example=f"{', '.join(SAMPLINGS)}, T above 0",
        metavar="NAME",
        lists=SWEPT,
        later=True,
    )
    steps_per_epoch: int | None = option(
        None,
        "Steps per epoch, with several tasks. [default: all their examples / batch size]",
        ge=1,
        metavar="N",
        later=True,
    )
    choose_epoch: str = option(
        "mean",
        "Keep the epoch with the best mean score, or each task's own best, with several tasks.",
        choices=EPOCH_CHOICES,
        later=True,
    )
    init_from: str | None = option(None, "Digest of the finished run whose weights this one begins with.", later=True)
    init_part: str | None = option(
        None, "The part to take from --init-from. [default: both]", choices=PARTS, later=True
    )
    freeze: str | None = option(None, "Part of the model that is not trained.", choices=PARTS, lists=WHOLE, later=True)
    layer_decay: float = option(
        1.0, "Multiply the encoder's rate by this from each layer to the one below.", gt=0, le=1, later=True
    )
    encoder_dropout: float | None = option(
        None, "Dropout rate in the encoder's trained layers. [default: the encoder's own]", ge=0, lt=1, later=True
    )
    accumulate: int = option(1, "Split each minibatch into N pieces and accumulate their gradients.", ge=1,
                             later=True)  # fmt: skip
    checkpointing: bool = option(False, "Gradient checkpointing of the encoder: less memory, more time.",
                                 later=True)  # fmt: skip
    from_layer: int | None = option(None, "Layer whose stored states the encoder's upper layers are trained over; None "
                                    "is from the text.", ge=1, later=True)  # fmt: skip

    def __post_init__(self) -> None:
        given, known = self.draw == GIVEN and self.draw_ids is not None, options_of(RunSpec)
        check_options(self, ("draw",) if given else ())
        if self.max_steps is not None:  # equal work has one digest
            object.__setattr__(self, "epochs", known["epochs"].default)
        if self.draw_ids is not None and not given:
            raise UsageError(
                "draw-ids is given without the draw 'ids'",
                expected="draw_ids with draw='ids' only",
                received=repr(self.draw_ids),
                remedy="leave draw_ids out",
            )

    @cached_property
    def digest(self) -> str:
        """The run's name on disk; ``later`` options count only if not at the default, so old runs keep their names."""
        known = options_of(type(self))
        return digest_of({k: v for k, v in self.to_dict().items() if not known[k].later or v != known[k].default})

    @property
    def is_frozen(self) -> bool:
        """Whether the encoder is not trained, so that the run reads only stored states."""
        return self.method == FROZEN

    @property
    def is_multi(self) -> bool:
        """Whether it learns several tasks, each over examples of its own."""
        return self.task_stores is not None

    @property
    def is_alone(self) -> bool:
        """Whether it is trained by itself, step by step, not in a stack with others."""
        return not self.is_frozen or self.is_multi

    @property
    def is_floor(self) -> bool:
        """Whether it is a floor, a baseline without an encoder: ``fusion`` is in :data:`fusionkit.names.FLOORS`."""
        return self.fusion in FLOORS

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`; unknown or missing fields raise :class:`UsageError`."""
        names = cls.__dataclass_fields__
        if extra := sorted(set(values) - set(names)):
            raise unknown_name("field of a run", extra[0], names)
        try:
            return cls(**values)
        except TypeError as error:
            raise UsageError("a run's spec is incomplete", received=str(error)) from error


def is_plain(spec: Mapping[str, Any]) -> bool:
    """Whether a run with these fields of a spec learns the task itself: no control labels, no block of a code."""
    return not spec.get("control", False) and spec.get("mdl") is None


def untrained_name(reference: str, seed: int) -> str:
    """The name of an encoder with random weights of this seed, as stores and results show it."""
    return f"{reference} (untrained {seed})"


def parse_untrained(name: str) -> tuple[str, int | None]:
    """An encoder's bundled name, folder or hub id, and the seed of its random weights, None if its name has none."""
    found = re.fullmatch(r"(.+) \(untrained ([0-9]+)\)", name)
    return (name, None) if found is None else (found[1], int(found[2]))


def parse_bytes(text: str) -> int:
    """A number of bytes from ``50GB``, ``1.5TB``, ``300MiB`` or plain digits."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?:([kmgt]?)(i?)b)?", text.strip(), re.IGNORECASE)
    if match is None or not 0 < (number := float(match[1])) < 1e15:
        raise UsageError(
            "this is no number of bytes",
            expected="like 50GB, 1.5TB or 300MiB",
            received=repr(text),
            remedy="write a number and a unit",
        )
    return int(number * (1024 if match[3] else 1000) ** " kmgt".index((match[2] or " ").lower()))


def parse_layers(text: str, count: int, option: str = "--layers") -> tuple[int, ...]:
    """Ascending, distinct layer indices from ``all``, ``0,6,12``, ``-4:`` or ``2:5``.

    Args:
        count: the number of layers, the embedding output included. option: the user's option, for errors.
    """
    expected = f"'all', indices like 0,3,{count - 1} or a slice like -4:, within 0…{count - 1}"
    try:
        if text == "all":
            return tuple(range(count))
        if ":" in text:
            start, stop = (int(part) if part.strip() else None for part in text.split(":"))
            chosen = set(range(count)[start:stop])
        else:
            chosen = {range(count)[int(part)] for part in text.split(",")}
    except (ValueError, IndexError) as error:
        raise UsageError(
            "these layers do not exist", expected=expected, received=text, remedy=f"choose {option} among these"
        ) from error
    if not chosen:
        raise UsageError("no layer is chosen", expected=expected, received=text, remedy=f"choose {option} among these")
    return tuple(sorted(chosen))
