"""The fusion and the pooling of runs over a store: as the user says, else as its rows suggest."""

from __future__ import annotations

import torch

from fusionkit.dataset.mlm import refuse_misfit
from fusionkit.dataset.stores import Stores
from fusionkit.errors import UsageError, first_has_seen_nothing
from fusionkit.fusions import build_fusion, fusion_layers, fusion_name, sees_examples
from fusionkit.heads import reads_sequences
from fusionkit.specs import FROZEN, MASKED, ONE_TOKEN, PER_SEQUENCE, parse_layers
from fusionkit.tasks import Task


def choose_fusion(store: Stores, fusion: str, layers: str | None, method: str = FROZEN) -> tuple[str, str | None]:
    """A fusion's canonical name, and the layers that the user chose; UsageError if the store does not suit it."""
    name, count = fusion_name(fusion), store.manifest["encoder"]["layers"]
    if sees_examples(name) and store.rows in PER_SEQUENCE:
        raise UsageError(
            f"fusion {name!r} looks at an example's rows side by side; rows of {store.rows} are one an example",
            expected="rows of tokens or words",
            received=f"rows of {store.rows}",
            remedy="encode again with --rows tokens, or choose another fusion",
        )
    chosen = None
    if layers is not None:
        chosen = store.layers if layers == "all" else parse_layers(layers, count, "--fusion-layers")
        if absent := [layer for layer in chosen if layer not in store.layers]:
            raise UsageError(
                f"the store has no layer {', '.join(map(str, absent))}",
                expected=f"some of layers {', '.join(map(str, store.layers))}",
                received=f"--fusion-layers {layers}",
                remedy="choose --fusion-layers among these, or encode again with these --layers",
            )
    read = fusion_layers(name, store.layers, count, chosen)
    with torch.device("meta"):  # the constructor checks the options; nothing is allocated
        width = build_fusion(name, len(read), store.hidden).width
    if store.rows == MASKED:
        refuse_misfit(name, width, store.hidden, stored=method == FROZEN)
    return name, None if chosen is None else ",".join(map(str, read))


def choose_pool(store: Stores, task: Task, pool: str | None, head: str | None = None) -> str | None:
    """How rows are pooled to one vector per example; None where there is nothing to pool, UsageError if they cannot
    be pooled.

    Args:
        head: the head where one was chosen; for a head that reads whole sequences nothing is pooled.
    """
    many = store.rows in ("tokens", "words", "words-mean")
    if head is not None and reads_sequences(head):
        if pool is not None or not many:
            raise UsageError(
                f"head {head!r} reads every row of an example and pools them itself",
                expected="rows of tokens or words, without --pool",
                received=f"rows of {store.rows}" + (f" and --pool {pool}" if pool else ""),
                remedy="leave --pool out" if many else "encode again with --rows tokens, or choose another --head",
            )
        return None
    if task.unit == "word" or not many:
        if pool is not None:
            raise UsageError(
                f"--pool {pool} has nothing to pool",
                expected="a sentence task over rows of tokens or words",
                received=f"task {task.name} over rows of {store.rows}",
                remedy="leave --pool out" if task.unit != "example" else "encode with --rows tokens to pool at fit",
            )
        return None
    if pool in ONE_TOKEN and store.rows != "tokens":
        raise UsageError(
            "rows of words have no first and no last token",
            expected="rows of tokens",
            received=f"--pool {pool} over rows of {store.rows}",
            remedy="choose --pool mean or max",
        )
    if pool == "cls" and store.manifest["encoder"].get("causal"):
        raise first_has_seen_nothing(f"encoder {store.manifest['encoder']['name']!r}", "--pool")
    return pool or (store.manifest["encoder"]["sentence_rows"] if store.rows == "tokens" else "mean")
