"""Do one unit, in this process or in a worker: claim its runs, train them, and write each as it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fusionkit.dataset.stores import Stores, shares_of
from fusionkit.dataset.task_data import TaskData
from fusionkit.dataset.task_stores import TaskStores
from fusionkit.fit.executor.alone import CostsAlone
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.cost import CostModel
from fusionkit.fit.executor.through_encoder import StateFile, TunedStep, progress_text
from fusionkit.fit.grouped import grouped
from fusionkit.fit.model.own_code import sources_of
from fusionkit.fit.sweep.grid import read_layers
from fusionkit.fit.train.halving import Halving, Rivals, rivals_of
from fusionkit.fit.train.result import DivergenceError, RunResult, StoppedRun
from fusionkit.machine.memory import PeakMemory, out_of_memory
from fusionkit.names import ROLES
from fusionkit.runs.background_writer import RunWriter
from fusionkit.runs.claims import Claims
from fusionkit.runs.folder import UNIT, RunsFolder
from fusionkit.specs import RunSpec, digest_of
from fusionkit.store import Store


@dataclass(frozen=True)
class Event:
    """Something that happened to a unit, as plain values that can be sent as JSON.

    Attributes:
        kind: ``epochs`` (``count`` more are done, with ``work`` in all); ``step`` (a run through the encoder did
            ``work`` more, ``text`` says how far it is); ``resumed`` (an earlier process had done ``work`` of the run
            ``text``); ``note`` (``text`` is for the user). The other kinds are about ``runs``: ``run`` (written),
            ``there`` (written by another process), ``others`` (claimed by the process that ``text`` names), ``lost``
            (not done, ``text`` says why), ``unstarted`` (their worker ended before it was ready).
        runs: digests.
    """

    kind: str
    runs: Sequence[str] = ()
    count: int = 0
    work: float = 0.0
    text: str = ""


BESIDE = ("weights", "delta", "costs", "answers")  # fields of a result that its record does not hold unchanged
OnEvent = Callable[[Event], None]


def do_unit(
    specs: Sequence[RunSpec], context: SweepContext, runs: RunsFolder, claims: Claims, on_event: OnEvent
) -> None:
    """Train the runs of a unit that no other process trains or has trained, and write each as it ends. With halving
    runs that compete are one process's at a time: two that shared them would each stop half of its own.

    Raised errors are those that stop every other run too: a full disk, a damaged store.
    """
    mine, guards, lost = list[RunSpec](), list[str](), None
    try:
        if context.halving:
            groups, specs = grouped(specs, rivals_of), []
            for rivals, group in groups.items():
                if claims.take(guard := guard_of(rivals)):
                    guards.append(guard)
                    specs += group
                else:
                    holder = claims.holder(guard) or "unknown"
                    on_event(Event("others", tuple(spec.digest for spec in group), text=holder))
        for spec in specs:
            if not claims.take(spec.digest):
                on_event(Event("others", (spec.digest,), text=claims.holder(spec.digest) or "unknown"))
            elif runs.has(spec.digest):
                runs.drop_state(spec)
                claims.release(spec.digest)
                on_event(Event("there", (spec.digest,)))
            else:
                mine.append(spec)
                if claims.holds(spec.digest):  # without locks another process may be writing these files
                    runs.sweep_out(spec)
        if mine:
            _train(mine, context, runs, claims, on_event)
    except Exception as error:
        if (lost := out_of_memory(error)) is None:
            raise
    finally:
        for name in (*(spec.digest for spec in mine), *guards):
            claims.release(name)
    if lost is not None:  # reported after the claims are released; the caller knows which runs ended before
        on_event(Event("lost", tuple(spec.digest for spec in mine), text=lost))


def guard_of(rivals: Rivals) -> str:
    """The name of the claim on runs that compete, beside the claims on each of them."""
    return f"{UNIT}{digest_of(list(rivals))}"


def _train(mine: Sequence[RunSpec], context: SweepContext, runs: RunsFolder, claims: Claims, on_event: OnEvent) -> None:
    """Train claimed runs, and write each and release its claim as it ends."""
    ended, cost, measured = 0, CostModel(context), CostsAlone(context)

    def tell(text: str) -> None:
        on_event(Event("note", text=text))

    def kept(spec: RunSpec) -> None:
        runs.drop_state(spec)
        claims.release(spec.digest)
        on_event(Event("run", (spec.digest,)))

    work = {spec: cost.products(spec) for spec in mine}
    for spec in mine:
        if not spec.is_alone:
            measured.of(spec)  # measured now, not between two epochs of other runs
    peak = PeakMemory(context.device)
    with RunWriter(runs, kept) as keeping:

        def on_epoch(spec: RunSpec) -> None:
            on_event(Event("epochs", count=1, work=0.0 if spec.is_alone else work[spec]))
            keeping.tell()

        def on_step(spec: RunSpec, step: TunedStep) -> None:
            if step.resumed is not None:
                on_event(Event("resumed", work=work[spec] * step.resumed, text=spec.digest))
            on_event(Event("step", work=work[spec] * step.epochs, text=progress_text(spec, step)))

        # All records of the folder: runs that compete with these may have been trained before.
        halving = Halving(runs.all_records()) if context.halving else None
        for spec, result in context.train(
            mine,
            on_epoch,
            tell=tell,
            halving=halving,
            on_step=on_step,
            state=lambda spec: StateFile.of(runs.state_path(spec), context.save_every),
        ):
            if isinstance(result, DivergenceError):
                keeping.write(spec, failed_record(context, spec, str(result)), {})
            elif isinstance(result, StoppedRun):
                record = record_of(context, spec, {"status": "stopped", "score": None, **asdict(result)})
                keeping.write(spec, record, {})
            else:
                own = result.costs if spec.is_alone else measured.record(spec, result)
                told = {**own, "peak_memory": peak.read()}
                record = finished_record(context, spec, result, told)
                # The model that coded a block is not used again.
                weights = result.weights if spec.mdl is None else {}
                keeping.write(spec, record, weights, result.delta, result.answers)
            ended += 1
    # A run that is neither done nor reported as lost would be waited for without end.
    assert ended == len(mine), f"{ended} of {len(mine)} runs came back"


def finished_record(
    context: SweepContext, spec: RunSpec, result: RunResult, costs: Mapping[str, Any]
) -> dict[str, Any]:
    """The record of a finished run, with what it cost; its weights are written beside the record."""
    # asdict would copy every tensor.
    values = {name: getattr(result, name) for name in result.__dataclass_fields__ if name not in BESIDE}
    return record_of(context, spec, {"status": "finished", **values, **costs})


def failed_record(context: SweepContext, spec: RunSpec, reason: str) -> dict[str, Any]:
    """The record of a run that failed, with the reason."""
    scores = {"metric": None, "score": None, "validation_score": None}
    return record_of(context, spec, {"status": "failed", "error": reason, **scores})


def record_of(context: SweepContext, spec: RunSpec, outcome: dict[str, Any]) -> dict[str, Any]:
    """A record with an outcome, what the run read, and what it needs to predict."""
    store, data, start = context.store, context.data(spec), context.start(spec)
    encoder = store.manifest["encoder"]
    others = outcome.get("others", {})
    stores = [part.store for part in shares_of(store)]
    return {
        "spec": spec.to_dict(),
        "data": store.name,
        "data_identity": ", ".join(digest_of(each.manifest["identity"]["data"]) for each in stores),
        "encoder": encoder["name"],
        "encoder_parameters": encoder["parameters"],
        "rows": store.rows,
        "layers": list(read_layers(store, spec)),
        "labels": data.labels,
        "default": data.default,
        "hidden": store.hidden,
        "sides": data.train.sides,
        "encoding": encoding_of(store),
        "sources": sources_of(spec),
        "init_data": None if start is None else start.data,
        **({"evaluated": store.name} if isinstance(store, Store) else store.record(spec)),
        **outcome,
        "others": {
            name: {
                "labels": other.labels,
                "default": other.default,
                **(of_store(store.store_of[name], other) if isinstance(store, TaskStores) else {}),
                **others.get(name, {}),
            }
            for name, other in data.others.items()
        },
    }


def of_store(store: Store, data: TaskData) -> dict[str, Any]:
    """The fields of a record on a task that has its own store."""
    return {"data": store.name, "encoding": encoding_of(store), "sides": data.train.sides}


def encoding_of(store: Stores) -> dict[str, Any]:
    """Which live encoder, with which precision and inputs, makes the states of a store."""
    identity = store.manifest["identity"]
    return {
        "encoder": identity["encoder"],
        "compute_dtype": identity["compute_dtype"],
        "max_length": identity["max_length"],
        "columns": {role: identity["columns"][role] for role in ROLES},
        "pair_as": identity.get("pair_as", "one"),
    }
