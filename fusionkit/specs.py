"""Frozen, validated descriptions of work: what is encoded, what is trained.

A spec holds plain values only, does no I/O, goes to a dict and back unchanged, and has a digest: equal
digests mean the same work.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import numbers
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any, Self

from fusionkit.errors import UsageError, unknown_name

ROWS = ("tokens", "words", "words-mean", "cls", "mean")
MASKED = "masked-tokens"  # rows of a store for masked LM: no choice of its own, the task brings it
POOLS = ("cls", "mean", "max")
PAIR_FORMS = ("one", "two")
STATE_DTYPES = ("float16", "bfloat16", "float32", "int8")
COMPRESSIONS = ("none", "zstd")
SCHEDULES = ("linear", "cosine", "constant")
OPTIMIZERS = ("adamw", "adam")
CLASS_WEIGHTS = ("none", "balanced")
JOINT_FUSIONS = ("shared", "each")
PARTS = ("fusion", "head", "both")
DRAWS = ("uniform", "stratified", "nested")
GIVEN = "ids"  # a draw that was given back
SHUFFLE, WINDOW = "shuffle", "window"
ORDERS = (SHUFFLE, WINDOW)
AUTO = "auto"  # the order that suits the store's size; no run has it
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
TRAINING_DTYPES = ("float32", "bfloat16")  # float16 would want its losses scaled
# Fields of a run that its first digests did not have.
LATER = (
    "fusion_layers", "optimizer", "warmup", "clip_norm", "label_smoothing", "class_weights", "patience",
    "joint_fusion", "mix", "evaluate_on", "init_from", "init_part", "freeze",
    "draw", "draw_ids", "validate_on", "order", "validate_every",
    "compute_dtype",
)  # fmt: skip


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: the text that digests are taken of."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def digest_of(value: Any) -> str:
    """First 16 hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


def _require(condition: bool, name: str, expected: str, received: object) -> None:
    if not condition:
        raise UsageError(
            f"{name} is out of range",
            expected=expected,
            received=repr(received),
            remedy="choose a value in that range",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodeSpec:
    """How a source becomes a store; the source itself and the machine are no part of it.

    Attributes:
        encoder: ``minilm``, a folder, or a hub id.
        revision: the hub revision, where one is asked for.
        rows: what one stored row is; None lets the columns and the encoder choose.
        layers: ``all``, indices (``0,6,12``) or a slice (``-4:``) over 0 (embeddings) … L.
        dtype: precision of the stored states; ``int8`` has a scale for each row and layer.
        compress: ``none``, or ``zstd``: the same numbers in fewer bytes, slower to write and to read.
        compute_dtype: precision of the forward pass.
        max_length: sub-tokens an example may have; None is the encoder's own limit.
        trust_remote_code: allow a hub repository's own Python code to run.
        task: ``mlm`` masks sub-tokens and keeps their rows alone, with the encoder's LM head; None masks nothing.
        mask_seed: sets which sub-tokens are masked, and by what. mask_share: how many of them.
        pair_as: a pair of texts as ``one`` sequence or as ``two``; None lets the encoder choose.
    """

    encoder: str = "minilm"
    revision: str | None = None
    rows: str | None = None
    layers: str = "all"
    dtype: str = "float16"
    compress: str = "none"
    compute_dtype: str = "float32"
    max_length: int | None = None
    trust_remote_code: bool = False
    task: str | None = None
    mask_seed: int = 0
    mask_share: float = 0.15
    pair_as: str | None = None

    def __post_init__(self) -> None:
        if self.task not in (None, "mlm"):
            raise unknown_name("task of an encode", str(self.task), ("mlm",))
        _require(0 <= self.mask_seed < 1 << 63, "mask_seed", "0 or more, below 2^63", self.mask_seed)
        _require(0 < self.mask_share <= 1, "mask_share", "above 0, up to 1", self.mask_share)
        _refuse_half_masked(self)
        if self.rows is not None and self.rows not in ROWS:
            raise unknown_name("kind of rows", self.rows, ROWS)
        if self.dtype not in STATE_DTYPES:
            raise unknown_name("dtype", self.dtype, STATE_DTYPES)
        if self.compress not in COMPRESSIONS:
            raise unknown_name("compression", self.compress, COMPRESSIONS)
        if self.compute_dtype not in COMPUTE_DTYPES:
            raise unknown_name("compute dtype", self.compute_dtype, COMPUTE_DTYPES)
        if self.pair_as is not None and self.pair_as not in PAIR_FORMS:
            raise unknown_name("form of pairs", self.pair_as, PAIR_FORMS)
        _require(self.max_length is None or self.max_length >= 3, "max_length", "3 or more", self.max_length)


def _refuse_half_masked(spec: EncodeSpec) -> None:
    plain = {field.name: field.default for field in dataclasses.fields(spec)}
    if spec.task is None:
        for name in ("mask_seed", "mask_share"):
            if getattr(spec, name) != plain[name]:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{option} masks nothing without --task mlm", remedy=f"add --task mlm or drop {option}"
                )
    elif spec.rows is not None:
        raise UsageError(
            f"--task mlm keeps the rows of masked sub-tokens, not of {spec.rows}", remedy="leave --rows out"
        )


def _make_numbers_plain(spec: RunSpec) -> None:
    """Python's own int and float in the fields that are so: to JSON, and so to the digest, 0 and 0.0 are two values."""
    for name, (expected, plain) in _numbers().items():
        if (value := getattr(spec, name)) is None:
            continue
        _require(not isinstance(value, bool), name, expected, value)
        try:
            object.__setattr__(spec, name, plain(value))
        except (TypeError, OverflowError):
            _require(False, name, expected, value)


@cache
def _numbers() -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """A run's fields that are numbers: what they should be, and how to make them so."""
    types = {field.name: str(field.type).partition(" ")[0] for field in dataclasses.fields(RunSpec)}
    return {name: _PLAIN[of] for name, of in types.items() if of in _PLAIN}


def _float(value: object) -> float:
    if not isinstance(value, numbers.Real):  # float() would read texts too
        raise TypeError
    return float(value) + 0.0  # -0.0 is 0.0, too


_PLAIN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "int": ("a whole number", operator.index), "float": ("a number", _float),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One head trained once.

    Attributes:
        store: digest of the store's identity.
        task, label: the task's name and the column it learns; several tasks have names,
            ``topic=classification,slots=tagging``, and a column each, ``category,slots``.
        fusion, head: names from their tables; a fusion's carries its options, ``dwatt:scale=yes``; of
            several tasks one each, ``classifier+tagger``.
        fusion_layers: the layers the fusion reads where they were chosen, like ``0,3,6``.
        pool: how token rows become one vector an example, None where rows need no pooling.
        shots: labelled examples per class; None is the whole training split.
        data_seed: sets the draw and the order of minibatches.
        init_seed: sets initial weights and dropout.
        lr, weight_decay, dropout, epochs, batch_size: as everywhere; decay is ``adamw``'s or, for ``adam``, L2.
        schedule: ``linear`` falls from lr to 0 over all steps (ElNokrashy et al. 2024), ``cosine`` too, along half a
            wave; ``constant`` stays.
        optimizer: ``adamw`` or ``adam``.
        warmup: share of all steps in which the rate rises from 0 to lr, before the schedule.
        clip_norm: the norm that the gradient of all weights together is cut down to; None leaves it.
        label_smoothing: share of each target that is spread over all classes.
        class_weights: ``balanced`` weighs a class in the loss by one over its share of the training labels.
        patience: epochs without a better validation score after which a run stops, where one is scored; None trains all
            of them.
        joint_fusion: whether the heads of a run of several tasks have one fusion, ``shared``, or one ``each``.
        mix: stores that are trained on together, or a share of one: digests with shares, ``3f…,a0…:5%``, in order;
            ``store`` is the first. None is the whole of ``store``.
        evaluate_on: digests of the stores to judge by, the first of which chooses the epoch; None is the last one
            that is trained on.
        init_from: digest of the finished run whose weights this one begins with.
        init_part: what is taken of it, ``fusion``, ``head`` or ``both``.
        freeze: the part that is not trained, ``fusion``, ``head`` or ``both``.
        draw: how shots are drawn, ``uniform``, ``stratified`` or ``nested``; ``ids`` are examples that were given.
        draw_ids: digest of the ids of a draw that was given.
        validate_on: validation examples that are scored while training; None is all of them.
        validate_every: epochs from one scoring of validation to the next; the last epoch is always scored.
        order: of an epoch's examples: ``shuffle`` all of them, or ``window``: shuffle the store's chunks, then the
            examples of a few chunks at a time.
        compute_dtype: precision of the products while training, ``float32`` or ``bfloat16``; weights are float32.
    """

    store: str
    task: str
    label: str
    fusion: str
    head: str
    pool: str | None = None
    shots: int | None = None
    data_seed: int = 0
    init_seed: int = 0
    lr: float = 2e-3
    weight_decay: float = 0.0
    dropout: float = 0.0
    epochs: int = 10
    batch_size: int = 32
    schedule: str = "linear"
    fusion_layers: str | None = None
    optimizer: str = "adamw"
    warmup: float = 0.0
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    class_weights: str = "none"
    patience: int | None = None
    joint_fusion: str = "shared"
    mix: str | None = None
    evaluate_on: str | None = None
    init_from: str | None = None
    init_part: str | None = None
    freeze: str | None = None
    draw: str = "uniform"
    draw_ids: str | None = None
    validate_on: int | None = None
    order: str = SHUFFLE
    validate_every: int = 1
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        _make_numbers_plain(self)
        if self.pool is not None and self.pool not in POOLS:
            raise unknown_name("pool", self.pool, POOLS)
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        if self.optimizer not in OPTIMIZERS:
            raise unknown_name("optimizer", self.optimizer, OPTIMIZERS)
        if self.class_weights not in CLASS_WEIGHTS:
            raise unknown_name("choice of class_weights", self.class_weights, CLASS_WEIGHTS)
        if self.joint_fusion not in JOINT_FUSIONS:
            raise unknown_name("choice of joint_fusion", self.joint_fusion, JOINT_FUSIONS)
        if self.compute_dtype not in TRAINING_DTYPES:
            raise unknown_name("compute_dtype of training", self.compute_dtype, TRAINING_DTYPES)
        if self.order not in ORDERS:
            raise unknown_name("order", self.order, ORDERS)
        if self.draw not in (*DRAWS, GIVEN) or (self.draw == GIVEN and self.draw_ids is None):
            raise unknown_name("draw", self.draw, DRAWS)
        _require(
            self.draw == GIVEN or self.draw_ids is None, "draw_ids", "none where the draw is no 'ids'", self.draw_ids
        )
        _require(self.validate_every >= 1, "validate_every", "1 epoch or more", self.validate_every)
        _require(
            self.validate_on is None or self.validate_on >= 1, "validate_on", "1 example or more", self.validate_on
        )
        _require(self.shots is None or self.shots >= 1, "shots", "1 or more", self.shots)
        _require(0 < self.lr < 100, "lr", "above 0, below 100", self.lr)
        _require(self.weight_decay >= 0, "weight_decay", "0 or more", self.weight_decay)
        _require(0 <= self.dropout < 1, "dropout", "from 0, below 1", self.dropout)
        _require(self.epochs >= 1, "epochs", "1 or more", self.epochs)
        _require(self.batch_size >= 1, "batch_size", "1 or more", self.batch_size)
        _require(0 <= self.warmup < 1, "warmup", "a share of the steps, from 0, below 1", self.warmup)
        clips = self.clip_norm is None or 0 < self.clip_norm < float("inf")
        _require(clips, "clip_norm", "above 0", self.clip_norm)
        _require(0 <= self.label_smoothing < 1, "label_smoothing", "from 0, below 1", self.label_smoothing)
        _require(self.patience is None or self.patience >= 1, "patience", "1 or more epochs", self.patience)
        listed = self.fusion_layers is None or re.fullmatch("[0-9]+(,[0-9]+)*", self.fusion_layers) is not None
        _require(listed, "fusion_layers", "layer indices like 0,3,6", self.fusion_layers)
        parts = " or ".join(PARTS)
        _require(self.init_part is None or self.init_part in PARTS, "init_part", parts, self.init_part)
        _require(self.freeze is None or self.freeze in PARTS, "freeze", parts, self.freeze)

    @cached_property
    def digest(self) -> str:
        """The run's name on disk: later fields count only where they were chosen, so that runs keep theirs."""
        plain = {field.name: field.default for field in dataclasses.fields(self) if field.name in LATER}
        return digest_of({k: v for k, v in self.to_dict().items() if k not in plain or v != plain[k]})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, by field name."""
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


def parse_bytes(text: str) -> int:
    """A number of bytes from ``50GB``, ``1.5TB``, ``300MiB`` or plain digits."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*(?:([kmgt]?)(i?)b)?\s*", text, re.IGNORECASE)
    try:
        number = float(match[1]) if match else -1.0
    except ValueError:
        number = -1.0
    _require(number > 0, "the number of bytes", "like 50GB, 1.5TB or 300MiB", text)
    assert match is not None
    return int(number * (1024 if match[3] else 1000) ** " kmgt".index((match[2] or " ").lower()))


def parse_layers(text: str, count: int, option: str = "--layers") -> tuple[int, ...]:
    """Layer indices from ``all``, ``0,6,12``, ``-4:`` or ``2:5``.

    Args:
        text: the choice; negative indices count from the last layer.
        count: how many layers there are, the embedding output included. option: what the user gave it by.

    Returns:
        ascending, distinct indices in ``range(count)``.
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
