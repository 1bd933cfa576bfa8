"""What runs read: a store or a mix, task data that is loaded once for all runs that share it, and runs to start from.

Another process opens the same context from an :data:`Opening`: addresses, shares and folders as plain values, no
tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_joint, load_task
from fusionkit.dataset.mixture import Mix
from fusionkit.dataset.online_code import coded_data
from fusionkit.dataset.pooled import pooled_data
from fusionkit.dataset.share import Share
from fusionkit.dataset.stores import Stores, shares_of, stores_of
from fusionkit.dataset.task_data import TaskData
from fusionkit.dataset.task_stores import TaskChoice, TaskStores
from fusionkit.errors import FusionkitError, StoppedError, StoreError, UsageError
from fusionkit.fit.executor.through_encoder import SAVE_EVERY, OnStep, StateFile, no_report, trainer
from fusionkit.fit.executor.units import data_key, pools_first
from fusionkit.fit.model.checkpoint import TrainedRun, open_runs
from fusionkit.fit.sweep.grid import read_layers
from fusionkit.fit.train.halving import Halving
from fusionkit.fit.train.inputs import training_split
from fusionkit.fit.train.loop import Ended, train_unit
from fusionkit.fusions import sees_examples
from fusionkit.heads import reads_sequences
from fusionkit.io.places import Place
from fusionkit.machine.bfloat16 import has_bfloat16
from fusionkit.machine.devices import CPU, device_of
from fusionkit.runs.folder import RECORD
from fusionkit.specs import FLOAT32, RunSpec
from fusionkit.store import Store, is_store, open_planned
from fusionkit.store.layer_positions import positions_of
from fusionkit.tasks import parts_of

Opening = Mapping[str, Any]


class SweepContext:
    """What the runs of one sweep read.

    Args:
        starts: the finished runs that the specs start from. draws: ids of examples by their digest, which specs name.
        sharers: the number of processes, this one included, that the free memory is divided among. halving: whether
            the worse settings stop early. save_every: how often runs that train through the encoder save their state.
        trust_remote_code: whether their encoder may bring code of its own.

    Attributes:
        seconds: how long the loading of task data has taken. costs: what runs cost by themselves, by kind.
    """

    def __init__(
        self,
        store: Stores,
        starts: Sequence[TrainedRun] = (),
        draws: Mapping[str, Sequence[str]] | None = None,
        sharers: int = 1,
        device: torch.device = CPU,
        halving: bool = False,
        save_every: str = SAVE_EVERY,
        trust_remote_code: bool = False,
    ) -> None:
        self.save_every, self.trust_remote_code = save_every, trust_remote_code
        self.seconds, self.sharers, self.device, self.halving = 0.0, sharers, device, halving
        self.draws = {digest: tuple(ids) for digest, ids in (draws or {}).items()}
        self.store = store
        self.starts = {start.digest: start for start in starts}
        self.costs: dict[Any, Any] = {}
        self._data: dict[tuple[Any, ...], TaskData] = {}
        self._learned: dict[tuple[Any, ...], int] = {}

    def data(self, spec: RunSpec) -> TaskData:
        """The splits that a run is trained and scored on; errors are those of loading its task."""
        if (key := data_key(spec)) not in self._data:
            if spec.mdl is not None:
                self._data[key] = coded_data(spec, self.data(replace(spec, mdl=None)))
                return self._data[key]
            began = time.perf_counter()
            data = self.load(spec)
            self._data[key] = replace(pooled_data(data) if pools_first(spec) else data, draws=self.draws)
            self.seconds += time.perf_counter() - began
        return self._data[key]

    def learned(self, spec: RunSpec) -> int:
        """How many examples a run learns from; UsageError if its draw cannot be made."""
        key = (data_key(spec), spec.data_seed, spec.shots, spec.draw, spec.draw_ids)
        if key not in self._learned:
            self._learned[key] = sum(map(len, training_split(spec, self.data(spec)).streams))
        return self._learned[key]

    def start(self, spec: RunSpec) -> TrainedRun | None:
        """The finished run that this one starts from, if any; UsageError if it was not given."""
        if spec.init_from is None:
            return None
        if spec.init_from not in self.starts:
            raise UsageError(f"the run {spec.init_from} to start from is not given", received=", ".join(self.starts))
        return self.starts[spec.init_from]

    def positions(self, spec: RunSpec) -> tuple[int, ...]:
        """The positions in the store of the layers that a run's fusion reads."""
        return positions_of(read_layers(self.store, spec), self.store.layers)

    def train(
        self,
        specs: Sequence[RunSpec],
        on_epoch: Callable[[RunSpec], None],
        data: TaskData | None = None,
        tell: Callable[[str], None] | None = None,
        halving: Halving | None = None,
        on_step: OnStep = no_report,
        state: Callable[[RunSpec], StateFile] | None = None,
        most_held: int | None = None,
    ) -> Iterator[Ended]:
        """Train the runs of a unit, and yield each as it ends.

        Args:
            data: splits to use instead of :meth:`data`. tell: called with notes. on_step, state: for a run that trains
                through the encoder: called with its steps; gives the file where its state is saved. most_held: as in
                :func:`~fusionkit.fit.train.loop.train_unit`.
        """
        data = data or self.data(specs[0])
        narrow = any(spec.compute_dtype != FLOAT32 for spec in specs)
        if tell is not None and narrow and self.device.type == "cpu" and not has_bfloat16():
            tell("this CPU has no bfloat16 instructions: --compute-dtype bfloat16 is slower here than float32")
        if specs[0].is_alone:
            (spec,) = specs  # such a run is a unit of its own
            saved = None if state is None else state(spec)
            return iter((trainer().train(spec, self, on_epoch, on_step, data, saved),))
        return train_unit(
            specs, data, self.positions, self.store.hidden, on_epoch, self.starts, tell, self.sharers, self.device,
            halving, most_held,
        )  # fmt: skip

    def load(self, spec: RunSpec) -> TaskData:
        """The splits with all rows of the store (:meth:`data` may have their means), read anew at each call."""
        if not isinstance(self.store, Store):
            return self.store.load(spec)
        if len(parts_of(spec)) > 1:
            return load_joint(self.store, spec)
        task, label = choose_task(self.store, spec.task, spec.label)
        whole, unpooled = sees_examples(spec.fusion), reads_sequences(spec.head)
        return load_task(self.store, task, label, spec.pool, whole, unpooled, control=spec.control)


def opening_of(context: SweepContext) -> Opening | None:
    """How another process opens the same context; None if a store or run is not at the place that it names.

    Returns:
        ``parts``: addresses and digests of stores, each with the share that is trained on; ``tasks``: the choices of
        each of several tasks, with the digest of its store; ``evaluate_on``: addresses and digests, empty unless the
        store is a mix; ``starts``: folders of finished runs; ``draws``, ``sharers``, ``device``, ``halving``,
        ``save_every``, ``trust_remote_code``: as in :class:`SweepContext`.
    """
    store = context.store
    folders = [start.folder for start in context.starts.values()]
    if not all(map(_opens_again, stores_of(store))) or not all((path / RECORD).is_file() for path in folders):
        return None
    choices = store.choices if isinstance(store, TaskStores) else ()
    return {
        "parts": [[*_named(part.store), part.part] for part in shares_of(store)],
        "tasks": [{**vars(each), "store": each.store.digest} for each in choices],
        "evaluate_on": [_named(each) for each in store.evaluation_stores] if isinstance(store, Mix) else [],
        "starts": [str(path.resolve()) for path in folders],
        "draws": context.draws,
        "sharers": context.sharers,
        "device": str(context.device),
        "halving": context.halving,
        "save_every": context.save_every,
        "trust_remote_code": context.trust_remote_code,
    }


def open_context(opening: Opening) -> SweepContext:
    """Open a context; errors are those of stores, mixes and runs, and of a device that is not there."""
    starts, device = open_runs(opening["starts"]), device_of(opening["device"])
    parts = [Share(_opened(place, digest), part) for place, digest, part in opening["parts"]]
    evaluation_stores = [_opened(place, digest) for place, digest in opening["evaluate_on"]]
    store: Stores = Mix(parts, evaluation_stores) if evaluation_stores else parts[0].store
    if opening["tasks"]:
        known = {part.store.digest: part.store for part in parts}
        store = TaskStores([TaskChoice(**{**told, "store": known[told["store"]]}) for told in opening["tasks"]])
    same = {name: opening[name] for name in ("draws", "sharers", "halving", "save_every", "trust_remote_code")}
    return SweepContext(store, starts, device=device, **same)


def address(place: Place) -> str:
    """A place as a text that :func:`fusionkit.io.places.place_of` reads alike from any working directory."""
    return str(place.resolve()) if isinstance(place, Path) else str(place)


def _named(store: Store) -> list[str]:
    """The address and the digest of a store."""
    return [address(store.path), store.digest]


def _opened(place: str, digest: str) -> Store:
    """The store with this digest. It may be only planned: what runs need of it was checked before.

    Raises:
        StoreError: there is another store, or none.
    """
    store = open_planned(place)
    if store.digest != digest:
        raise StoreError(
            f"{place} is not the store that the sweep began with",
            expected=f"the store with digest {digest}",
            received=f"one with digest {store.digest}",
            remedy="put that store back, or run the same command again to fit over the new one",
        )
    return store


def _opens_again(store: Store) -> bool:
    try:
        return is_store(store.path) and open_planned(address(store.path)).digest == store.digest
    except StoppedError:
        raise
    except (FusionkitError, OSError):
        return False
