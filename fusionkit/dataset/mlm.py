"""A store of masked sub-tokens seen through the task ``mlm``: checks of the store, and its texts with their ids."""

from __future__ import annotations

import numpy as np

from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.targets import carve_validation
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import DataError, UsageError
from fusionkit.fusions import sees_examples
from fusionkit.names import id_column
from fusionkit.plural import counted
from fusionkit.ragged import offsets_of
from fusionkit.specs import MASKED
from fusionkit.store import Store
from fusionkit.store.lm_head_file import read_lm_head
from fusionkit.tasks import TASKS, Task

LABEL = "mlm_labels"  # the store's array, in place of a column


def choose_mlm(store: Store, task: str | None, label: str | None) -> tuple[Task, str] | None:
    """The task ``mlm`` for a store of masked sub-tokens, None if neither store nor user asks for it.

    UsageError if store and user disagree, or for a label column.
    """
    masked = store.rows == MASKED
    if not masked and task != "mlm":
        return None
    if not masked or task not in (None, "mlm"):
        raise UsageError(
            f"rows of {store.rows} do not suit the task {task}",
            expected="rows of masked-tokens" if not masked else "the task mlm",
            received=f"{store.path} with rows of {store.rows}",
            remedy="encode with --task mlm" if not masked else "encode again without --task mlm, or leave --task out",
        )
    if label not in (None, LABEL):
        raise UsageError(
            "masked sub-tokens are learned, no column", received=f"--label {label}", remedy="leave --label out"
        )
    return TASKS["mlm"], LABEL


def refuse_misfit(fusion: str, width: int, hidden: int, stored: bool) -> None:
    """Refuse a fusion of ``width`` that the encoder's LM head, which reads states of width ``hidden``, cannot read, and
    over ``stored`` states one that reads all sub-tokens.
    """
    if stored and sees_examples(fusion):
        raise UsageError(
            f"fusion {fusion!r} looks at all rows of an example; the store has those of its masked sub-tokens alone",
            expected="a fusion of each row by itself",
            received=fusion,
            remedy="choose another --fusion, or a --method that trains through the encoder",
        )
    if width != hidden:
        raise UsageError(
            f"fusion {fusion!r} gives states {width} wide; the encoder's LM head reads states of width {hidden}",
            expected=f"a fusion of width {hidden}",
            received=f"{fusion}, width {width}",
            remedy="choose another --fusion: concat-affine is the concat of that width",
        )


def load_masked(store: Store, task: Task) -> TaskData:
    """One example per text that has masked sub-tokens: their rows and original ids; DataError if too few are masked."""
    head, notes, splits = read_lm_head(store.path, store.manifest), list[str](), dict[str, TaskSplit]()
    for name in store.splits:
        stored = store[name]
        ids, counts = stored.masked_ids.astype(np.int64), np.diff(stored.row_offsets)
        texts = np.flatnonzero(counts)
        offsets = offsets_of(counts[texts])
        gold = [each.tolist() for each in np.split(ids, offsets[1:-1])] if len(texts) else []
        # A sequence has the id of its example, except where each example is two sequences, shared by examples.
        column = id_column(stored.column_names) if stored.sides == 1 else None
        names = stored.columns([column])[column].iloc[texts].tolist() if column else texts
        split = TaskSplit(
            stored.hidden_states, np.arange(len(ids), dtype=np.int64), offsets, ids, gold, [*map(str, names)],
            kept=np.ones(len(ids), dtype=bool), word_offsets=offsets,
        )  # fmt: skip
        if len(split) or name == "train":
            splits[name] = split
        else:
            notes.append(f"{name} has no masked sub-token: not used")
    train = splits["train"]
    if not len(train) or ("validation" not in splits and len(train) < 2):
        raise DataError(
            f"too few sub-tokens of {store.path} are masked to learn from",
            expected="some in train and in validation, or in two texts of train",
            received=f"some in {counted(len(train), 'text')} of train",
            remedy="encode more text, or a larger --mask-share",
        )
    if "validation" not in splits:
        train, splits["validation"] = carve_validation(store, train, notes, "texts of train")
    if "test" not in splits:
        notes.append("no test split: scores are validation's alone")
    return TaskData(task, LABEL, None, [], 1, "", train, splits["validation"], splits.get("test"), notes, head)
