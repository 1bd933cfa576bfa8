"""Reading a column of labels, with one function for each kind of label.

Examples without a label are left out, and a note counts them; an example without a number or its tags is refused.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fusionkit.errors import DataError, UsageError
from fusionkit.plural import counted

if TYPE_CHECKING:
    import pandas as pd

Gold = tuple[list[Any], NDArray[np.bool_]]  # one label per example (None if missing); which examples have one


@dataclass(frozen=True)
class LabelColumn:
    """One split's column of labels.

    Attributes:
        frame: the split's examples. split: its name. label: the column. tokens: the column of words, if there is one.
        among: bool ``[examples]``, those that may be used; None is all. notes: messages for the user are added there.
    """

    frame: pd.DataFrame
    split: str
    label: str
    tokens: str | None
    among: NDArray[np.bool_] | None
    notes: list[str]

    @property
    def values(self) -> list[Any]:
        """The values of the column; without it, None throughout."""
        return self.frame[self.label].tolist() if self.label in self.frame.columns else [None] * len(self.frame)


def has_label(value: Any) -> bool:
    """False for a missing label: None, an empty string, NaN or the NA of pandas; an empty list is a label."""
    if isinstance(value, (str, list, np.ndarray)):
        return not isinstance(value, str) or value != ""
    import pandas as pd  # as in :func:`read_numbers`

    return not pd.isna(value)


def is_known(value: Any, classes: Container[str] | None) -> bool:
    """Whether a value is a label, and one of these classes unless they are None."""
    return has_label(value) and (classes is None or _text(value) in classes)


def read_labels(column: LabelColumn) -> Gold:
    """Labels as text."""
    present = _present(column)
    return [_text(value) if ok else None for value, ok in zip(column.values, present, strict=True)], present


def read_label_lists(column: LabelColumn) -> Gold:
    """Any number of labels per example, without repeats, as text.

    Raises:
        DataError: a value that is not a list, or a list with a missing label.
    """
    values, present = column.values, _present(column)
    for example, (value, ok) in enumerate(zip(values, present, strict=True)):
        listed = isinstance(value, (list, np.ndarray))
        if ok and not (listed and all(map(has_label, value))):
            what = "has an entry without a value" if listed else "holds no list of labels"
            raise DataError(
                f"{column.split}, example {example}: {column.label!r} {what}",
                expected='a list in every example, like ["sports", "politics"] or []',
                received=repr(value)[:80],
                remedy="mend the source and encode it again, or choose another --label",
            )
    gold = [list(dict.fromkeys(map(_text, value))) if ok else None for value, ok in zip(values, present, strict=True)]
    return gold, present


def read_tags(column: LabelColumn) -> Gold:
    """Tags as texts; where the column is absent or empty no example has any.

    Raises:
        UsageError: an example has no list of tags, or another number of tags than words.
    """
    frame, label = column.frame, column.label
    if label not in frame.columns or column.tokens is None or frame[label].isna().all():
        return [None] * len(frame), np.zeros(len(frame), dtype=bool)
    present = np.ones(len(frame), dtype=bool) if column.among is None else column.among
    for example, (tags, words) in enumerate(zip(frame[label], frame[column.tokens], strict=True)):
        listed = isinstance(tags, (list, np.ndarray))
        if present[example] and not (listed and len(tags) == len(words)):
            what = f"does not match {column.tokens!r}" if listed else "holds no tags"
            raise UsageError(
                f"{column.split}, example {example}: {label!r} {what}",
                expected=f"{counted(len(words), 'tag')}, one a word",
                received=str(len(tags)) if listed else repr(tags)[:80],
                remedy="choose a --label that holds one tag a word",
            )
    return [[*map(str, tags)] if ok else None for tags, ok in zip(frame[label], present, strict=True)], present


def read_numbers(column: LabelColumn) -> Gold:
    """One number per example; none at all if the column is absent or empty.

    Raises:
        DataError: values that are not numbers, or an example without one.
    """
    import pandas as pd  # importing it takes a third of a second, which listing tasks must not pay

    frame, split, label = column.frame, column.split, column.label
    values = np.full(len(frame), np.nan)
    if label in frame.columns:
        try:
            values = pd.to_numeric(frame[label]).to_numpy(dtype=np.float64, na_value=np.nan)
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{split}: {label!r} holds something else than numbers",
                expected="a number in every example",
                received=str(error),
                remedy="mend the source and encode it again, or choose another --label",
            ) from error
    sound = np.isfinite(values)
    needed = np.ones(len(frame), dtype=bool) if column.among is None else column.among
    if not sound[needed].all() and not np.isnan(values).all():
        first = int(np.flatnonzero(~sound & needed)[0])
        raise DataError(
            f"{split}, example {first}: no number in {label!r}",
            expected="a finite number in every example, or in none of the split",
            received=f"{values[first]}; none in {int((~sound & needed).sum())} of {counted(len(values), 'example')}",
            remedy="remove these examples or fill in their numbers, and encode again",
        )
    return values.tolist(), sound


def _present(column: LabelColumn) -> NDArray[np.bool_]:
    """Which examples have a label; a note counts those without one."""
    present = np.array([has_label(value) for value in column.values], dtype=bool)
    missing = int((~present).sum())
    if missing and present.any():
        column.notes.append(f"{column.split}: {counted(missing, 'example')} without {column.label}: left out")
    return present


def _text(value: Any) -> str:
    # Integers of a column with missing values come back from Parquet as floats: 1.0 is the label 1.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
