"""Texts as the input of an estimator whose method trains through the encoder.

In a temporary folder the texts become a store that is only planned (sub-tokens, no states). So training is the same as
with ``fusionkit fit --method``: the same order, steps and weights.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from fusionkit.dataset.task_data import TaskData
from fusionkit.encode.job import make_job
from fusionkit.encode.plan import write_plan
from fusionkit.encoder import Encoder
from fusionkit.encoder.refusals import refuse_surrogates
from fusionkit.estimator.examples import ArrayExamples
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.train.result import DivergenceError, RunResult
from fusionkit.methods import parse_method
from fusionkit.methods.structure import structure_of
from fusionkit.sources import Columns, Examples, Source
from fusionkit.specs import EncodeSpec, RunSpec
from fusionkit.store import Store, open_planned
from fusionkit.tuning import trainer
from fusionkit.tuning.encoder import tuned
from fusionkit.tuning.live import LiveStates, longest_read
from fusionkit.tuning.passes import FromText
from fusionkit.tuning.tokens import tokens_of


def train_on_texts(encoder: Encoder, spec: RunSpec, data: TaskData, store: Store) -> tuple[RunResult, Encoder]:
    """Train a run over texts.

    Args:
        encoder: what reads the texts; it is changed in place. store: the texts, as :func:`planned` has them. data: its
            examples with their targets.

    Returns:
        the run's result, and the encoder with what its method trained; its ``max_length`` leaves room for that.

    Raises:
        DivergenceError: the loss is not finite. UsageError: the encoder cannot take the method.
    """
    _, result = trainer.train(spec, SweepContext(store, device=encoder.device), data=data)
    if isinstance(result, DivergenceError):
        raise result
    assert isinstance(result, RunResult), "a run of its own is not stopped for others"
    return result, with_delta(encoder, spec, result.delta)


def with_delta(encoder: Encoder, spec: RunSpec, delta: Mapping[str, torch.Tensor]) -> Encoder:
    """An encoder with what a run's method trained. It is changed in place; ``max_length`` leaves room for what the
    method adds.
    """
    with torch.random.fork_rng(devices=[]):
        attached = tuned(encoder, spec).attached
    attached.load_delta(delta)
    attached.train(False)
    return dataclasses.replace(encoder, max_length=longest_read(encoder, attached))


def with_room(encoder: Encoder, method: str) -> Encoder:
    """The encoder, whose ``max_length`` leaves room for what a method adds; errors as of putting it in effect."""
    with torch.random.fork_rng(devices=[]):
        attached = parse_method(method).build().attach(encoder.model, structure_of(encoder.model))
    try:
        return dataclasses.replace(encoder, max_length=longest_read(encoder, attached))
    finally:
        attached.detach()


def live_examples(texts: Sequence[str], encoder: Encoder) -> ArrayExamples:
    """Examples whose states an encoder computes on demand."""
    with planned(texts, encoder) as store:
        split = store["train"]
        states = LiveStates(FromText(encoder, tokens_of(split)), range(encoder.layers))
        return ArrayExamples(states, np.array(split.row_offsets), np.array(split.row_mask))


@contextmanager
def planned(texts: Sequence[str], encoder: Encoder) -> Iterator[Store]:
    """A store of the texts' sub-tokens, in its split ``train``.

    Raises:
        UsageError: a text that holds half of a surrogate pair.
    """
    refuse_surrogates(texts)
    source = Source("texts", {"train": Examples.of(pa.table({"text": pa.array(texts, pa.string())}))})
    with tempfile.TemporaryDirectory() as folder:
        place, spec = Path(folder) / "texts.store", EncodeSpec(encoder=encoder.name, rows="tokens")
        write_plan(make_job(source, Columns(text="text"), place, spec, encoder))
        yield open_planned(place)
