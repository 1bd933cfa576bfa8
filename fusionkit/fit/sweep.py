"""Sweeps: runs trained unit by unit, each kept as it ends. Run again, only the missing ones run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from fusionkit.draws import uniform_draw
from fusionkit.errors import UsageError
from fusionkit.fit.choices import check_sides, choose_fusion, choose_task
from fusionkit.fit.data import TaskData
from fusionkit.fit.expand import read_layers
from fusionkit.fit.joint import load_joint
from fusionkit.fit.matching import load_task
from fusionkit.fit.mixing import Mix
from fusionkit.fit.options import check_options
from fusionkit.fit.outcome import DivergenceError, Outcome
from fusionkit.fit.results import RunsFolder
from fusionkit.fit.starting import Start, check_start, starting_notes
from fusionkit.fit.train import train_unit
from fusionkit.fit.units import data_key, plan_units
from fusionkit.fusions import sees_examples
from fusionkit.heads import reads_sequences
from fusionkit.specs import RunSpec
from fusionkit.store import Store


class FitProgress(Protocol):
    """Who watches a sweep: the command line's bar, or nobody."""

    def begin(self, runs: int, epochs: int) -> None:
        """The sweep has this many runs left, of this many epochs together."""

    def epoch(self) -> None:
        """One more epoch of one run is done."""

    def run(self, record: dict[str, Any]) -> None:
        """A run has ended."""

    def say(self, line: str) -> None:
        """Something the user should know."""


def fit(
    store: Store | Mix, specs: Sequence[RunSpec], runs: RunsFolder, progress: FitProgress, starts: Sequence[Start] = ()
) -> list[dict[str, Any]]:
    """Train every run that is not there yet, keeping each as it ends.

    Args:
        starts: the finished runs that the specs begin from.

    Returns:
        the records of all the specs, in their order.

    Raises:
        UsageError: ``runs`` holds other files, or a draw is larger than train. FusionkitError: the disk is full.
    """
    runs.claim()
    data: dict[tuple[Any, ...], TaskData] = {}
    notes: dict[str, None] = {}
    begun = {start.run.spec.digest: start for start in starts}
    missing = [spec for spec in specs if runs.record(spec) is None]
    if len(missing) < len(specs):
        progress.say(f"{len(specs) - len(missing)} of {len(specs)} runs are there already")
    for spec in missing:
        # What cannot work is refused now, not after hours of the other runs.
        choose_fusion(store, spec.fusion, spec.fusion_layers)
        check_options(spec)
        if (key := data_key(spec)) not in data:
            whole, unpooled = sees_examples(spec.fusion), reads_sequences(spec.head)
            if isinstance(store, Mix):
                data[key] = store.load(spec)
            elif spec.task == "joint":
                data[key] = load_joint(store, spec.label, spec.pool)
            else:
                task, label = choose_task(store, spec.task, spec.label)
                data[key] = load_task(store, task, label, spec.pool, whole, unpooled)
            notes = dict.fromkeys([*notes, *data[key].notes])
        check_sides(spec.head, data[key].train.sides)
        if spec.shots is not None:
            uniform_draw(len(data[key].train), spec.shots, data[key].classes, spec.data_seed)
        if spec.init_from is not None:
            if spec.init_from not in begun:
                raise UsageError(f"the run {spec.init_from} to start from is not given", received=", ".join(begun))
            check_start(spec, begun[spec.init_from], data[key].labels)
        sizes = len(read_layers(store, spec)), store.hidden, len(data[key].labels), data[key].train.sides
        notes = dict.fromkeys([*notes, *starting_notes(spec, *sizes)])
    for note in notes:
        progress.say(note)

    def positions(spec: RunSpec) -> tuple[int, ...]:
        return tuple(store.layers.index(layer) for layer in read_layers(store, spec))

    progress.begin(len(missing), sum(spec.epochs for spec in missing))
    for unit in plan_units(missing):
        shared = data[data_key(unit.specs[0])]
        for spec, outcome in train_unit(unit.specs, shared, positions, store.hidden, progress.epoch, begun):
            progress.run(keep(store, spec, shared, runs, outcome, begun))
    runs.write_table()  # also when all were there: the sweep that made them may have been killed before its table
    return [record for spec in specs if (record := runs.record(spec)) is not None]


def keep(
    store: Store | Mix,
    spec: RunSpec,
    data: TaskData,
    runs: RunsFolder,
    outcome: Outcome | DivergenceError,
    starts: Mapping[str, Start],
) -> dict[str, Any]:
    """Write what a run came to, and give its record. One that diverged is kept as failed, with the reason."""
    encoder = store.manifest["encoder"]
    start = None if spec.init_from is None else starts[spec.init_from]
    record: dict[str, Any] = {
        "spec": spec.to_dict(),
        "data": store.name,
        "encoder": encoder["name"],
        "encoder_parameters": encoder["parameters"],
        "rows": store.rows,
        "layers": list(read_layers(store, spec)),
        "labels": data.labels,
        "default": data.default,
        "hidden": store.hidden,
        "sides": data.train.sides,
        "encoding": encoding_of(store),
        "init_data": None if start is None else start.data,
        **(store.record(spec) if isinstance(store, Mix) else {"evaluated": store.name}),
    }
    slots = {} if data.slots is None else {"labels": data.slots.labels, "default": data.slots.default}
    weights = {}
    if isinstance(outcome, DivergenceError):
        record |= {"status": "failed", "error": str(outcome), "metric": None, "score": None, "validation_score": None}
    else:
        record |= {"status": "finished"} | {name: value for name, value in _fields(outcome) if name != "weights"}
        slots |= outcome.slots or {}
        weights = outcome.weights
    record["slots"] = slots or None
    runs.write(spec, record, weights)
    return record


def encoding_of(store: Store | Mix) -> dict[str, Any]:
    """What a live encoder must be, and be given, to make the states that a run was trained over."""
    identity = store.manifest["identity"]
    return {
        "encoder": identity["encoder"],
        "compute_dtype": identity["compute_dtype"],
        "max_length": identity["max_length"],
        "columns": {role: identity["columns"][role] for role in ("text", "pair", "tokens")},
        "pair_as": identity.get("pair_as", "one"),
    }


def _fields(outcome: Outcome) -> Iterator[tuple[str, Any]]:
    # asdict would copy every tensor.
    yield from ((name, getattr(outcome, name)) for name in outcome.__dataclass_fields__)
