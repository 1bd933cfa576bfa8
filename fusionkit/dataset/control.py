"""Control labels: a fixed random label per word type, or per text, in place of the real label.

    C(v) = t_⌊n u(v)⌋        u(v) = h(v) / 2⁶⁴

Symbols: ``t_0 … t_(n-1)`` the sorted labels of all words of train (for sentence tasks: of all examples), so that
control labels are drawn from train's empirical distribution; ``h(v)`` the first 64 bits of the SHA-256 of the column's
name and of v. ``v`` is a word as it is written; for sentence tasks it is the text, or both texts of a pair.

C(v) depends only on the word, the column and train's labels: a word type has one label in all splits and for all
seeds. A head that does as well on control labels as on the real ones has memorised words. Selectivity is the score of
the real labels minus that of the control labels.

Source: Hewitt and Liang (2019), sections 2.1 and 3.1, for words. For texts there is no published rule.
Nothing predicts the control label of a test text that train lacks: the control score on such texts is that of guessing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from fusionkit.dataset.targets import Columns
from fusionkit.names import ROLES
from fusionkit.printable import plain_text
from fusionkit.store import Store
from fusionkit.tasks import Task


def label_pool(task: Task, golds: Iterable[Sequence[Any]]) -> list[Any]:
    """The labels of train, sorted by their text, one for each word or example; None (no label) is left out."""
    told = [label for gold in golds for label in gold if label is not None]
    return sorted(chain.from_iterable(told) if task.unit == "word" else told, key=str)


def control_label(column: str, thing: str, pool: Sequence[Any]) -> Any:
    """The control label of a word type or text: always the same for the same column and pool."""
    digest = hashlib.sha256(f"{column}\0{thing}".encode("utf-8", "surrogatepass")).digest()
    return pool[int.from_bytes(digest[:8], "big") * len(pool) >> 64]


def control_columns(store: Store, columns: Columns, task: Task, label: str, pool: Sequence[Any]) -> Columns:
    """The same examples with control labels.

    Args:
        columns: by split, one label per example (None without one) and which examples have one. pool: the result of
            :func:`label_pool`.
    """
    roles = store.manifest["columns"]
    known: dict[str, Any] = {}

    def of(thing: str) -> Any:
        if thing not in known:
            known[thing] = control_label(label, thing, pool)
        return known[thing]

    found: Columns = {}
    for split, (_, present) in columns.items():
        frame = store[split].examples
        if task.unit == "word":
            words = frame[roles["tokens"]]
            control = [[of(str(word)) for word in row] if ok else None for row, ok in zip(words, present, strict=True)]
        else:
            names = [roles[role] for role in ROLES if roles[role]]
            texts = zip(*(map(plain_text, frame[name]) for name in names), strict=True)
            control = [of("\0".join(each)) if ok else None for each, ok in zip(texts, present, strict=True)]
        found[split] = control, present
    return found
