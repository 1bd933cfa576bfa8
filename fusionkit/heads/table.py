"""The table of heads, and building one. Names, tasks and sequences alone load no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from fusionkit.errors import StoppedError, UsageError
from fusionkit.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from fusionkit.heads.crf import Crf
    from fusionkit.heads.regressor import Regressor
    from fusionkit.heads.sigmoid_classifier import Sigmoid
    from fusionkit.heads.softmax import Softmax

    AnyHead = Softmax | Crf | Regressor | Sigmoid


class Head(Protocol):
    """What each head is: a module from fused states to scores, with its loss and its decision.

    The table builds each from ``(width, classes, dropout)``. One that decides by the probability of each class also
    has ``probabilities(scores)``, ``[n, classes]``; a CRF decides whole paths and has none.

    The encoder's own LM head is not in the table: it is read from the store, not built.
    """

    def __call__(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[n, width]`` → scores ``[n, classes]``, or ``[n, 1]`` for a number.

        ``offsets`` bound the sequences in the ``n`` rows, for a head that looks at whole sequences. One that reads
        whole sequences (:func:`reads_sequences`) gives a row of scores per example: ``[examples, classes]``.
        """
        ...

    def loss(self, scores: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
        """The mean loss of a batch; ``offsets`` bound its examples in the ``n`` rows."""
        ...

    def decode(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """The decided classes, int64 ``[n]``; for numbers, float ``[n]``; for multi-label tasks the probabilities of
        all classes, ``[n, classes]``, which a threshold decides.
        """
        ...


@dataclass(frozen=True)
class HeadEntry:
    """Where a head is, and what it fits.

    Attributes:
        path: ``MODULE:FUNCTION`` or class. tasks: names of the tasks it can be the head of.
        sequences: the number of sequences that an example must have, for a head that reads all rows of an example
            instead of one pooled row; None for the others.
    """

    path: str
    tasks: tuple[str, ...]
    sequences: int | None = None


EXAMPLES = ("classification", "pair-classification")
WORDS, NUMBERS = ("tagging",), ("regression",)
# The first head of a task is its default.
HEADS = {
    "classifier": HeadEntry("fusionkit.heads.feed_forward:classifier", EXAMPLES),
    "linear-classifier": HeadEntry("fusionkit.heads.feed_forward:linear_classifier", EXAMPLES),
    "tagger": HeadEntry("fusionkit.heads.feed_forward:tagger", WORDS),
    "linear-tagger": HeadEntry("fusionkit.heads.feed_forward:linear_tagger", WORDS),
    "crf": HeadEntry("fusionkit.heads.crf:crf", WORDS),
    "bilstm-crf": HeadEntry("fusionkit.heads.bilstm_crf:bilstm_crf", WORDS),
    "regressor": HeadEntry("fusionkit.heads.regressor:regressor", NUMBERS),
    "linear-regressor": HeadEntry("fusionkit.heads.regressor:linear_regressor", NUMBERS),
    "bcn": HeadEntry("fusionkit.heads.bcn:bcn", ("classification",), sequences=1),
    "esim": HeadEntry("fusionkit.heads.esim:esim", ("pair-classification",), sequences=2),
    "esim-regressor": HeadEntry("fusionkit.heads.esim:esim_regressor", NUMBERS, sequences=2),
    "sigmoid-classifier": HeadEntry("fusionkit.heads.sigmoid_classifier:sigmoid_classifier", ("multi-label",)),
}
LM_HEADS = ("lm-head", "lm-head-trained")
REGISTRY = Registry("head", "fusionkit.heads", {name: entry.path for name, entry in HEADS.items()})
OWN_TASKS = (*EXAMPLES, *WORDS, *NUMBERS)


@cache
def head_entry(name: str) -> HeadEntry:
    """The entry of a head of the table, of an installed package, or of an import path.

    Raises:
        UsageError: the name is unknown, its module cannot be imported, or the object there is no head.
    """
    if name in HEADS:
        return HEADS[name]
    kind, options = REGISTRY.split(name)
    if options is not None:
        raise UsageError(
            f"head {kind!r} takes no options", expected=kind, received=name, remedy="leave out what follows the name"
        )
    found, path = REGISTRY.load(name).value, REGISTRY.path(name)
    tasks, sequences = getattr(found, "tasks", None), getattr(found, "sequences", None)
    named = isinstance(tasks, tuple) and len(tasks) > 0 and set(tasks) <= set(OWN_TASKS)
    if tasks is None or not named or not callable(found) or sequences not in (None, 1, 2):
        raise UsageError(
            f"{name!r} is no head",
            expected=f"a class, built as (width, classes, dropout), with `tasks`, some of {OWN_TASKS}, and, "
            "where it reads whole sequences, `sequences`, 1 or 2",
            received=f"{found!r} with tasks {tasks!r} and sequences {sequences!r}",
            remedy="see docs/your-own.md; fusionkit.testing.check_head tries all that a head must keep",
        )
    return HeadEntry(path, tasks, sequences)


def heads_of(task: str) -> tuple[str, ...]:
    """The heads that a task can have, its default first."""
    return LM_HEADS if task == "mlm" else tuple(name for name, entry in HEADS.items() if task in entry.tasks)


def suits(name: str, task: str) -> bool:
    """Whether a head, of the table or somebody's own, fits a task of one column.

    Raises:
        UsageError: as :func:`head_entry`.
    """
    return task in head_entry(name).tasks


def gives_numbers(name: str) -> bool:
    return name not in LM_HEADS and suits(name, "regression")


def each_head(text: str) -> tuple[str, ...]:
    """The heads that a text names, one for each task: ``classifier+crf``, or ``topic=classifier,slots=crf``."""
    if "=" in text:
        return tuple(part.partition("=")[2] for part in text.split(","))
    return tuple(text.split("+"))


def build_head(name: str, width: int, classes: int, dropout: float) -> AnyHead:
    """A head with fresh weights.

    Raises:
        UsageError: an unknown name, or a module that cannot be imported.
    """
    head_entry(name)
    return REGISTRY.load(name).value(width, classes, dropout)  # type: ignore[no-any-return]


@cache
def decides_by_softmax(name: str) -> bool:
    """Whether a head's loss is the cross-entropy of each row alone, which class weights and label smoothing act on.

    Raises:
        UsageError: an unknown name.
    """
    from fusionkit.heads.softmax import Softmax

    return name in LM_HEADS or type(_on_meta(name)) is Softmax  # a subclass may decide differently


@cache
def decides_rows_alone(name: str) -> bool:
    """Whether a head decides each row by softmax from that row alone, so that other rows change nothing.

    Raises:
        UsageError: an unknown name.
    """
    from fusionkit.heads.softmax import Softmax

    if name in LM_HEADS:
        return True
    head = _on_meta(name)
    return type(head) is Softmax and not getattr(head.score, "across_rows", False)


def _on_meta(name: str) -> AnyHead | None:
    """A head without numbers, to look at; None for a user's own that cannot be built at a width of 1."""
    import torch

    try:
        with torch.device("meta"):
            return build_head(name, 1, 2, 0.0)
    except (StoppedError, UsageError):
        raise
    except Exception:  # whatever its code raises
        return None


def sequences_of(name: str) -> int | None:
    """The number of sequences that an example must have for a head that reads all of its rows; None for the other
    heads.
    """
    if name in LM_HEADS or "+" in name:  # heads of several tasks do not read whole sequences
        return None
    return head_entry(name).sequences


def reads_sequences(name: str) -> bool:
    """Whether a head reads all rows of an example and gives one row of scores for it, so that they are not pooled."""
    return sequences_of(name) is not None
