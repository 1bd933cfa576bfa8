"""The encoder of a finished run, with what its method trained in effect."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from fusionkit.dataset.stores import Stores, stores_of
from fusionkit.dataset.task_data import TaskData
from fusionkit.encoder import Encoder
from fusionkit.errors import FusionkitError, UsageError, first_line
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.io.files import checked_bytes, damaged, read_json
from fusionkit.machine.devices import CPU
from fusionkit.methods import REGISTRY, parse_method
from fusionkit.methods.per_task import OF, all_own, of_task
from fusionkit.methods.structure import structure_of
from fusionkit.names import MEAN
from fusionkit.runs.folder import DELTA, RECORD
from fusionkit.specs import RunSpec
from fusionkit.tasks import ALONE, parts_of
from fusionkit.tuning.encoder import TunedEncoder, encoder_of, tuned
from fusionkit.tuning.live import live_data, longest_read
from fusionkit.tuning.tokens import TokenSource
from fusionkit.tuning.upper_layers import UpperLayers

AGAIN = "restore the file, or train the run again"


def encoder_of_run(
    run: TrainedRun,
    place: str | None = None,
    device: str = "cpu",
    trust_remote_code: bool = False,
    dtype: str | None = None,
) -> Encoder:
    """The encoder that a run was trained over, without what its method trained; arguments as of :func:`encoder_of`.

    Raises:
        EncoderError: it cannot be loaded, or is not the run's.
    """
    remedy = (
        "put that encoder back (predict and evaluate take its place with --encoder), or encode and fit again with this "
        "one"
    )
    return encoder_of(
        run.encoder, run.encoding, device, place, trust_remote_code=trust_remote_code, dtype=dtype, remedy=remedy
    )


def trained_encoder(
    run: TrainedRun,
    place: str | None = None,
    device: str = "cpu",
    trust_remote_code: bool = False,
    delta: Mapping[str, torch.Tensor] | None = None,
) -> Encoder:
    """The run's own encoder, frozen, in float32; a plain model of transformers where the method merges. Where tasks
    have their own weights, it is the encoder of the run's first task.

    Args:
        run: one that has a delta. place: where the encoder is now, if no longer where it was. delta: that of the run,
            where it is already read.

    Raises:
        EncoderError: it cannot be loaded, or is not the run's. StoreError: the delta is missing or damaged.
    """
    delta = of_task(delta_of(run) if delta is None else delta, run.name)
    with torch.random.fork_rng(devices=[]):
        loaded = encoder_of_run(run, place, device, trust_remote_code, "float32")
        _refuse_larger(run, loaded, delta)
        method = tuned(loaded, dataclasses.replace(run.spec, checkpointing=False))
    method.attached.load_delta(delta)
    if parse_method(run.spec.method).entry.merges:
        method.attached.merge()
    method.attached.train(False)
    loaded.model.requires_grad_(False)
    return dataclasses.replace(loaded, max_length=longest_read(loaded, method.attached))


def _refuse_larger(run: TrainedRun, encoder: Encoder, delta: Mapping[str, torch.Tensor]) -> None:
    """Refuse a method with more weights than were kept of it, before memory is taken for them (StoreError)."""
    spec = parse_method(run.spec.method)
    if REGISTRY.is_own(spec.name):
        return  # a user's own code may fail on the meta device
    # The method is put in effect on a copy of the encoder whose weights are shapes alone.
    model = encoder.model
    shapes: dict[int, Any] = {id(each): nn.Parameter(each.to("meta"), False) for each in model.parameters()}
    shapes |= {id(each): each.to("meta") for each in model.buffers()}
    try:
        structure = copy.deepcopy(structure_of(model), shapes)
        with torch.device("meta"):
            attached = spec.build().attach(structure.model, structure)
    except FusionkitError:
        raise
    except Exception:
        return  # not every encoder can be copied to the meta device
    count = attached.count() if attached.read is None else 0  # else some of what it trains is not kept
    if count > (there := sum(weights.numel() for weights in delta.values())):
        expected = f"{count:,} numbers of the method {run.spec.method}"
        raise damaged(run.folder / DELTA, expected, f"{there:,} numbers", AGAIN)


def own_encoders(
    run: TrainedRun, place: str | None = None, device: str = "cpu", trust_remote_code: bool = False
) -> dict[str, Encoder]:
    """The run's own encoder of each task, by the task's name; by the name ``""`` where one serves all tasks. Arguments
    and errors as of :func:`trained_encoder`.
    """
    delta = delta_of(run)
    parts = run.parts if _has_own_weights(delta) else {ALONE: run}
    return {name: trained_encoder(part, place, device, trust_remote_code, delta) for name, part in parts.items()}


def whole_encoder(run: TrainedRun, place: str | None = None) -> Encoder:
    """The run's encoder as a plain model, with what was trained merged into its weights; for a frozen run as it was.

    Raises:
        UsageError: the method cannot be merged, or tasks have their own weights in the encoder. Otherwise as
            :func:`trained_encoder`.
    """
    if run.delta is None:
        return encoder_of_run(run, place, dtype="float32")
    if not parse_method(run.spec.method).entry.merges:
        raise UsageError(
            f"the method {run.spec.method} cannot be merged into the encoder's weights",
            expected="a method that transformers needs not know: full, top, bitfit, lora, ia3 or diff-prune",
            received=run.spec.method,
            remedy="leave --with-encoder out: the delta is exported, and fusionkit puts it behind the encoder",
        )
    if _has_own_weights(delta := delta_of(run)):
        raise UsageError(
            "each task of the run has weights of its own in the encoder, so that no one encoder serves all",
            expected="a run whose tasks share what was trained of the encoder, like one of full",
            received=run.spec.method,
            remedy="leave --with-encoder out: heads and what was trained are exported",
        )
    return trained_encoder(run, place, delta=delta)


def _has_own_weights(delta: Mapping[str, torch.Tensor]) -> bool:
    """Whether each task of a run has weights of its own in the encoder."""
    return any(OF in name for name in delta)


def delta_of(run: TrainedRun) -> dict[str, torch.Tensor]:
    """What a run's method trained, by name; errors as :func:`delta_bytes`."""
    try:
        return load(delta_bytes(run))
    except SafetensorError as error:
        raise damaged(run.folder / DELTA, "weights by name", first_line(error), AGAIN) from error


def delta_bytes(run: TrainedRun) -> bytes:
    """The file of what a run's method trained.

    Raises:
        StoreError: it is missing or not the recorded one. UsageError: the run trained nothing of its encoder.
    """
    if run.delta is None:
        raise UsageError(f"the run {run.folder} trained nothing of its encoder", received=f"method {run.spec.method}")
    return checked_bytes(*run.delta, f"what the method {run.spec.method} trained", AGAIN)


def live_data_of(
    run: TrainedRun,
    data: TaskData,
    stores: Stores,
    place: str | None = None,
    device: torch.device = CPU,
    trust_remote_code: bool = False,
) -> TaskData:
    """The splits over the states of the run's own encoder, from the stored layer that it started from where the stores
    hold it; for a frozen run as they are. Where tasks have their own stores, each is read with its own weights.
    ``place`` and ``trust_remote_code`` are those of :func:`trained_encoder`.
    """
    if run.delta is None:
        return data
    if starts_from_layer(run.spec, stores):
        trained = tuned_of(run, place, str(device), trust_remote_code)
        upper = upper_layers(run.spec, stores, trained)
        return live_data(data, TokenSource(stores), trained.encoder, stores.layers, upper=upper)
    if not data.apart:
        encoder = trained_encoder(run, place, str(device), trust_remote_code)
        return live_data(data, TokenSource(stores), encoder, stores.layers)
    trained = tuned_of(run, place, str(device), trust_remote_code)
    return live_data(data, TokenSource(stores), trained.encoder, stores.layers, use=trained.attached.use)


def starts_from_layer(spec: RunSpec, stores: Stores) -> bool:
    """Whether the run's layers start from a layer whose states these stores hold; else they start from the text."""
    return spec.from_layer in stores.layers and not any(store.is_planned for store in stores_of(stores))


def upper_layers(spec: RunSpec, stores: Stores, trained: TunedEncoder) -> UpperLayers | None:
    """The layers above the stored one that the run started from, with what it trained; None where all layers are
    computed from the text.
    """
    if spec.from_layer is None or not starts_from_layer(spec, stores):
        return None
    return UpperLayers(trained.encoder, trained.attached, spec.from_layer)


def tuned_of(
    run: TrainedRun, place: str | None = None, device: str = "cpu", trust_remote_code: bool = False
) -> TunedEncoder:
    """The run's own encoder in evaluation mode, with its method in effect and what was trained loaded. Where tasks have
    their own stores, ``attached.use`` puts a task's weights in. Arguments and errors as of :func:`trained_encoder`.
    """
    spec = dataclasses.replace(RunSpec.from_dict(read_json(run.folder / RECORD)["spec"]), checkpointing=False)
    delta = delta_of(run)
    with torch.random.fork_rng(devices=[]):
        loaded = encoder_of_run(run, place, device, trust_remote_code, "float32")
        _refuse_larger(run, loaded, delta)
        found = tuned(loaded, spec)
    attached = found.attached if spec.choose_epoch == MEAN else all_own(found.attached, list(parts_of(spec)))
    attached.load_delta(delta)
    attached.train(False)
    return TunedEncoder(found.encoder, attached)
