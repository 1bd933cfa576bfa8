"""Heads over the states of a store. Only runs that trained through an encoder need the encoder."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch

from fusionkit.dataset.labels import counted_classes
from fusionkit.dataset.targets import match_splits
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import UsageError
from fusionkit.evaluation.answers import LabelledExamples
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.fit.train.decisions import predict
from fusionkit.fusions import sees_examples
from fusionkit.heads import reads_sequences
from fusionkit.names import ROLES
from fusionkit.ragged import IntArray
from fusionkit.store import Store
from fusionkit.store.layer_positions import positions_of
from fusionkit.store.same_encoder import shown_states
from fusionkit.tasks import TASKS
from fusionkit.tasks.label_column import is_known


def stored_examples(store: Store, split: str) -> LabelledExamples:
    """A split of a store as examples with labels."""
    columns = store.manifest["columns"]
    roles = {role: columns[role] for role in ROLES if columns[role]}
    return LabelledExamples(store.name, split, store[split].examples, roles, store.digest)


def has_stored_labels(store: Store, split: str, columns: Mapping[str, Container[str] | None]) -> bool:
    """As :func:`fusionkit.evaluation.over_source.has_labels`, of a store's split."""
    frame = store[split].columns(columns)
    return any(is_known(value, columns[name]) for name in frame.columns for value in frame[name])


def stored_answers(
    run: TrainedRun,
    store: Store,
    split: str,
    gold: list[Any],
    examples: IntArray,
    device: torch.device,
    encoder: str | None = None,
    trust_remote_code: bool = False,
) -> list[Any]:
    """A head's answers about some examples of a split.

    Args:
        run: the head; one of the tasks of a run of several. gold: one label per example of the split, None without one.
        examples: numbers of the examples, ascending; all have a label. encoder: for a run that trained through one, the
            encoder's current place if it was moved. trust_remote_code: whether that encoder may bring code of its own.

    Raises:
        UsageError: the store has other states, rows or layers than the run reads, or the run trained through an encoder
            that reads other rows.
    """
    refuse_other(run, store)
    task, spec = TASKS[run.spec.task], run.spec
    present = torch.zeros(len(gold), dtype=torch.bool)
    present[torch.from_numpy(examples)] = True
    notes = list[str]()
    whole, unpooled = sees_examples(spec.fusion), reads_sequences(spec.head)
    columns = {split: (gold, present.numpy())}
    matched = match_splits(store, columns, task, spec.pool, run.labels, notes, whole, unpooled)[split]
    classes, _ = counted_classes(run.labels, matched.gold, task)
    data = TaskData(task, spec.label, spec.pool, run.labels, classes, run.default, matched, matched, matched, notes)
    if run.delta is not None:
        from fusionkit.tuning.trained import live_data_of  # loads transformers

        data = live_data_of(run, data, store, encoder, device, trust_remote_code)
    return predict(run.model.to(device), data, data.validation, positions_of(run.layers, store.layers))


def refuse_other(run: TrainedRun, store: Store) -> None:
    """Refuse a store whose states a run cannot read (UsageError)."""
    identity, columns = store.manifest["identity"], store.manifest["columns"]
    wanted = shown_states(run.encoding["encoder"], run.rows, run.encoding["columns"], run.encoding["pair_as"])
    given = shown_states(identity["encoder"], store.rows, columns, identity.get("pair_as", "one"))
    if missing := [str(layer) for layer in run.layers if layer not in store.layers]:
        wanted["layers"], given["layers"] = f"{', '.join(missing)} too", ", ".join(map(str, store.layers))
    if different := [name for name in wanted if wanted[name] != given[name]]:
        raise UsageError(
            f"the run {run.folder.name} cannot read the states of {store.path}",
            expected=", ".join(f"{name} {wanted[name]}" for name in different),
            received=", ".join(f"{name} {given[name]}" for name in different),
            remedy="encode the data as for training, or give the source itself in the place of the store",
        )
