"""The encoder of a finished run, with what its method trained in effect."""

from __future__ import annotations

import dataclasses
import hashlib

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from fusionkit.dataset.stores import Stores
from fusionkit.dataset.task_data import TaskData
from fusionkit.encode.batching import Batching
from fusionkit.encoder import Encoder
from fusionkit.errors import StoreError, UsageError
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.io.files import read_json
from fusionkit.machine.devices import CPU
from fusionkit.methods import parse_method
from fusionkit.methods.per_task import OF, all_own, of_task
from fusionkit.runs.folder import RECORD
from fusionkit.runs.task_rows import MEAN
from fusionkit.specs import RunSpec
from fusionkit.tasks import parts_of
from fusionkit.tuning.encoder import TunedEncoder, encoder_of, load_tuned, tuned
from fusionkit.tuning.live import live_data
from fusionkit.tuning.tokens import TokenSource


def trained_encoder(
    run: TrainedRun, place: str | None = None, device: str = "cpu", trust_remote_code: bool = False
) -> Encoder:
    """The run's own encoder, frozen, in float32; a plain model of transformers where the method merges. Where tasks
    have their own weights, it is the encoder of the run's first task.

    Args:
        run: one that has a delta. place: where the encoder is now, if no longer where it was.

    Raises:
        EncoderError: it cannot be loaded, or is not the run's. StoreError: the delta is missing or damaged.
    """
    identity, words = run.encoding["encoder"], run.encoding["columns"]["tokens"] is not None
    name, dtype = place or run.encoder, run.encoding["compute_dtype"]
    loaded = encoder_of(name, identity, dtype, words, device, trust_remote_code)
    method = tuned(loaded, dataclasses.replace(run.spec, checkpointing=False))
    method.attached.load_delta(of_task(delta_of(run), run.name))
    if parse_method(run.spec.method).entry.merges:
        method.attached.merge()
    method.attached.train(False)
    loaded.model.requires_grad_(False)
    return dataclasses.replace(loaded, max_length=loaded.max_length - method.attached.positions_added)


def whole_encoder(run: TrainedRun, place: str | None = None) -> Encoder:
    """The run's encoder as a plain model, with what was trained merged into its weights; for a frozen run as it was.

    Raises:
        UsageError: the method cannot be merged, or tasks have their own weights in the encoder. Otherwise as
            :func:`trained_encoder`.
    """
    if run.delta is None:
        identity, words = run.encoding["encoder"], run.encoding["columns"]["tokens"] is not None
        return encoder_of(place or run.encoder, identity, run.encoding["compute_dtype"], words, "cpu")
    if not parse_method(run.spec.method).entry.merges:
        raise UsageError(
            f"the method {run.spec.method} cannot be merged into the encoder's weights",
            expected="a method that transformers needs not know: full, top, bitfit, lora, ia3 or diff-prune",
            received=run.spec.method,
            remedy="leave --with-encoder out: the delta is exported, and fusionkit puts it behind the encoder",
        )
    if has_own_weights(run):
        raise UsageError(
            "each task of the run has weights of its own in the encoder, so that no one encoder serves all",
            expected="a run whose tasks share what was trained of the encoder, like one of full",
            received=run.spec.method,
            remedy="leave --with-encoder out: heads and what was trained are exported",
        )
    return trained_encoder(run, place)


def has_own_weights(run: TrainedRun) -> bool:
    """Whether each task of a run has weights of its own in the encoder."""
    return run.delta is not None and any(OF in name for name in delta_of(run))


def delta_of(run: TrainedRun) -> dict[str, torch.Tensor]:
    """What a run's method trained, by name; errors as :func:`delta_bytes`."""
    try:
        return load(delta_bytes(run))
    except SafetensorError as error:
        raise _damaged(run, str(error).splitlines()[0]) from error


def delta_bytes(run: TrainedRun) -> bytes:
    """The file of what a run's method trained.

    Raises:
        StoreError: it is missing or not the recorded one. UsageError: the run trained nothing of its encoder.
    """
    if run.delta is None:
        raise UsageError(f"the run {run.folder} trained nothing of its encoder", received=f"method {run.spec.method}")
    path, wanted = run.delta
    try:
        content = path.read_bytes()
        if (found := hashlib.sha256(content).hexdigest()) != wanted:
            raise _damaged(run, f"{len(content):,} bytes with sha256 {found}")
    except OSError as error:
        raise _damaged(run, str(error).splitlines()[0]) from error
    return content


def live_data_of(
    run: TrainedRun, data: TaskData, stores: Stores, place: str | None = None, device: torch.device = CPU
) -> TaskData:
    """The splits over the states of the run's own encoder; for a frozen run as they are. Where tasks have their own
    stores, each is read with its own weights. ``place`` is that of :func:`trained_encoder`.
    """
    if run.delta is None:
        return data
    how = (stores.layers, Batching.on(device.type))
    if not data.apart:
        return live_data(data, TokenSource(stores), trained_encoder(run, place, str(device)), *how)
    trained = tuned_of(run, stores, device)
    return live_data(data, TokenSource(stores), trained.encoder, *how, use=trained.attached.use)


def tuned_of(run: TrainedRun, stores: Stores, device: torch.device = CPU) -> TunedEncoder:
    """The run's own encoder in evaluation mode, with its method in effect and what was trained loaded. Where tasks have
    their own stores, ``attached.use`` puts a task's weights in.

    Raises:
        EncoderError, UsageError: as of :func:`load_tuned`. StoreError: the delta is missing or damaged.
    """
    spec = dataclasses.replace(RunSpec.from_dict(read_json(run.folder / RECORD)["spec"]), checkpointing=False)
    with torch.random.fork_rng(devices=[]):
        found = load_tuned(stores, spec, device)
    attached = found.attached if spec.choose_epoch == MEAN else all_own(found.attached, list(parts_of(spec)))
    attached.load_delta(delta_of(run))
    attached.train(False)
    return TunedEncoder(found.encoder, attached)


def _damaged(run: TrainedRun, received: str) -> StoreError:
    assert run.delta is not None
    path, wanted = run.delta
    return StoreError(
        f"{path} is damaged",
        expected=f"what the method {run.spec.method} trained, with sha256 {wanted}",
        received=received,
        remedy="restore the file, or train the run again",
    )
