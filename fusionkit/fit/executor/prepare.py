"""Before a sweep's first run: find the runs that are there already, and refuse what cannot work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fusionkit.dataset.mixture import Mix
from fusionkit.dataset.stores import Stores, stores_of
from fusionkit.errors import StoppedError, UsageError
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.cost import CostModel
from fusionkit.fit.executor.through_encoder import SAVE_EVERY, StateFile
from fusionkit.fit.executor.units import unit_key
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.model.own_code import refuse_redefined, source_notes
from fusionkit.fit.model.warm_start import check_start, starting_notes
from fusionkit.fit.sweep.budget import plan_over
from fusionkit.fit.sweep.fixed_draws import FixedDraws, strange_draws
from fusionkit.fit.sweep.from_layer import highest_below, known_start, start_of
from fusionkit.fit.sweep.fusion_choices import choose_fusion
from fusionkit.fit.sweep.grid import read_layers
from fusionkit.fit.train.halving import rivals_of
from fusionkit.fit.train.schedule import check_options, check_rate, length_of
from fusionkit.machine.devices import CPU
from fusionkit.methods import parse_method
from fusionkit.plural import counted
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import FROZEN, SHUFFLE, WINDOW, RunSpec
from fusionkit.store import open_store
from fusionkit.tasks import parts_of
from fusionkit.tasks.head_check import check_sides

FEW_STEPS = 100  # 16 sentences a type of CoNLL-2003: full fine-tuning has 17.4 F1 after 40 steps, 49.6 after 120


@dataclass(frozen=True)
class Prepared:
    """A sweep that was checked.

    Attributes:
        missing: the runs to be trained. there: the others. failed: the runs with a failed record, which are in
            ``there``, or with ``retry_failed`` in ``missing``. stopped: those of the missing that an earlier sweep
            stopped early.
        notes: what the user should know.
    """

    context: SweepContext
    missing: list[RunSpec]
    there: list[RunSpec]
    failed: list[RunSpec]
    stopped: list[RunSpec]
    notes: list[str]


def prepare(
    store: Stores,
    specs: Sequence[RunSpec],
    runs: RunsFolder,
    starts: Sequence[TrainedRun] = (),
    draws: Sequence[FixedDraws] = (),
    retry_failed: bool = False,
    device: torch.device = CPU,
    halving: bool = False,
    save_every: str = SAVE_EVERY,
    trust_remote_code: bool = False,
) -> Prepared:
    """Load what the missing runs need and try their choices, so that nothing is refused after hours of other runs.

    With ``retry_failed``, runs with a failed record count as missing; without ``halving``, stopped runs do.
    Errors are those of :func:`fusionkit.fit.fit`, and StoreError for a damaged record in ``runs``.
    """
    StateFile.of(runs.path, save_every)  # raises for a text that is neither steps nor minutes
    specs = list(dict.fromkeys(specs))  # the same run given twice is trained once
    runs.claim()
    runs.all_records()  # of all sweeps: the table reads them, and a damaged one would end this sweep later
    given = {one.digest: one.ids for one in draws}
    context = SweepContext(
        store, starts, given, device=device, halving=halving, save_every=save_every, trust_remote_code=trust_remote_code
    )
    records = {spec: record for spec in specs if (record := runs.record(spec)) is not None}
    done = {spec for spec, record in records.items() if counts_as_done(record, retry_failed, halving)}
    there = [spec for spec in specs if spec in done]
    missing = [spec for spec in specs if spec not in done]
    failed = [spec for spec, record in records.items() if record["status"] == "failed"]
    stopped = [spec for spec, record in records.items() if record["status"] == "stopped" and not halving]
    notes = list[str]()
    if there:
        notes.append(f"{len(there)} of {counted(len(specs), 'run')} there already")
    if failed and not retry_failed:
        notes.append(f"{len(failed)} of them failed; --retry-failed tries them again")
    for spec in there:
        if records[spec]["status"] != "failed":  # --retry-failed goes on from the state of a failed run
            runs.drop_state(spec)  # left by a process that was killed after it wrote the run
        changed = source_notes(spec, records[spec].get("sources"))
        notes += [f"{note}; runs that are there keep what they learned with it as it was" for note in changed]
    notes += strange_draws(draws, missing, store.name)
    if any(spec.is_frozen for spec in missing):
        _refuse_planned(store)
    for spec in missing:
        refuse_redefined(spec)
        choose_fusion(store, spec.fusion, spec.fusion_layers, spec.method)
        check_options(spec)
        check_rate(spec)
        data = context.data(spec)
        notes += data.notes
        for name, part in parts_of(spec).items():
            check_sides(part.head, data.sides[name])
        context.learned(spec)  # raises where the draw cannot be made
        labels = {name: part.labels for name, part in data.parts.items()}
        classes = {name: len(known) for name, known in labels.items()}
        shape = (len(read_layers(store, spec)), store.hidden, classes, data.sides)
        if (start := context.start(spec)) is not None:
            with torch.device("meta"):
                model = model_of(spec, *shape)
            check_start(model, spec, start, labels)
        notes += starting_notes(spec, *shape)
    _check_methods(missing, context)
    notes += _layer_notes(missing, context)
    notes += _step_notes(missing, context)
    if halving:
        _check_halving(missing, context)
    return Prepared(context, missing, there, failed, stopped, list(dict.fromkeys(notes)))


def counts_as_done(record: Mapping[str, Any], retry_failed: bool, halving: bool) -> bool:
    """Whether the run of a record is done: it is not trained again, as a failed one is with ``retry_failed``, and a
    stopped one without ``halving``.
    """
    again = {"failed": retry_failed, "stopped": not halving}
    return not again.get(record["status"], False)


def _check_methods(specs: Sequence[RunSpec], context: SweepContext) -> None:
    """Raise UsageError where the store's encoder cannot take a run's method or its options, or where a fusion reads no
    layer that its method changes. Only the encoder's configuration is read; where that is not here, or does not
    suffice, the runs themselves will tell.
    """
    store, tuned = context.store, [spec for spec in specs if not spec.is_frozen]
    wanted = {(spec.method, spec.checkpointing, spec.layer_decay): spec for spec in tuned}
    for spec in wanted.values():
        try:
            plan_over(store, context.trust_remote_code).check(spec, _longest(spec, context))
        except (UsageError, StoppedError):
            raise
        except Exception:  # some encoders, and methods of the user's own, need the weights themselves
            continue
    for spec in tuned:
        lowest = parse_method(spec.method).lowest_changed(store.manifest["encoder"]["layers"] - 1)
        if (highest := max(read_layers(store, spec))) < lowest:
            raise UsageError(
                f"the fusion {spec.fusion} reads no layer that the method {spec.method} changes",
                expected=f"a fusion that reads layer {lowest} or one above it",
                received=f"layers up to {highest}",
                remedy="train that head with --method frozen, or choose another --fusion or other --fusion-layers",
            )


def _longest(spec: RunSpec, context: SweepContext) -> int:
    """The sub-tokens of the longest sequence that a run certainly reads: of a mix of stores only train is looked at."""
    unread = {"test"} if context.data(spec).test is None else set[str]()
    unread |= {"validation", "test"} if isinstance(context.store, Mix) and len(context.store.stores) > 1 else set()
    splits = [each[name] for each in stores_of(context.store) for name in each.splits if name not in unread]
    return max((int(np.diff(split.token_offsets).max(initial=0)) for split in splits), default=0)


def _layer_notes(specs: Sequence[RunSpec], context: SweepContext) -> list[str]:
    """Notes on runs that start from a stored layer: what they save, how much stored states differ from live ones, and
    when encoding has paid for itself. Or why the encoder cannot start there.
    """
    notes, cost, store = list[str](), CostModel(context), context.store
    encoded = sum(split["examples"] for each in stores_of(store) for split in each.manifest["splits"].values())
    for spec in {(spec.method, spec.from_layer): spec for spec in specs if not spec.is_frozen}.values():
        if (layer := spec.from_layer) is None:
            start = known_start(store, spec.method, highest_below(store, spec.method))
        else:
            start = start_of(store, spec.method, layer)
        if isinstance(start, UsageError):
            notes.append(f"{spec.method} trains from the text: {start.what}, {start.received}")
        elif start is not None and layer is not None:
            tests, scored = context.data(spec).scored_tests, cost.watched(spec) / spec.validate_every
            tested = sum(len(stream) for test in tests.values() for stream in test.streams)
            paid = start.paid_after(context.learned(spec), scored, tested, encoded)
            notes.append(
                f"{spec.method} starts from stored layer {layer} of {start.depth}: {start.stored:.1f} layer passes a "
                f"training example, {start.text:.1f} from the text; stored and live states differ by "
                f"{100 * start.off:.2g} %; encoding has paid for itself after {paid:.1f} epochs"
            )
    return notes


def _step_notes(specs: Sequence[RunSpec], context: SweepContext) -> list[str]:
    """A note for each method that trains through the encoder and has runs of fewer than :data:`FEW_STEPS` steps."""
    fewest = dict[str, int]()
    for spec in specs:
        if not spec.is_frozen:
            steps = length_of(spec, context.learned(spec)).steps
            fewest[spec.method] = min(steps, fewest.get(spec.method, steps))
    return [
        f"only {counted(steps, 'step')} of training with {method}, too few to tell what it can reach: "
        "raise --epochs, or set --max-steps to some hundreds"
        for method, steps in fewest.items()
        if steps < FEW_STEPS
    ]


def _refuse_planned(store: Stores) -> None:
    """Raise StoreError for a store without states: frozen runs read them."""
    for each in stores_of(store):
        if each.is_planned:
            open_store(each.path)  # raises, and says what is missing


def _check_halving(specs: Sequence[RunSpec], context: SweepContext) -> None:
    """Refuse competing runs that cannot be trained together, or have no validation examples (UsageError)."""
    units: dict[Any, set[Any]] = {}
    for spec in specs:
        if spec.is_alone:
            raise UsageError(
                "--halving stops runs that are trained side by side, and this one is not",
                expected=f"--method {FROZEN} alone, over stores of one task",
                received=f"--method {spec.method}" + (", several tasks" if spec.is_multi else ""),
                remedy="leave --halving out; `--epochs 1 --encoder-lr grid` tries rates first",
            )
        if not len(context.data(spec).validation):
            raise UsageError(
                "--halving chooses by validation scores, and this data has no validation examples",
                expected="a validation split, or training examples enough to set some aside",
                remedy="leave --halving out",
            )
        units.setdefault(rivals_of(spec), set()).add(unit_key(spec))
    if any(len(keys) > 1 for keys in units.values()):
        raise UsageError(
            "--halving compares means over seeds, and these seeds cannot be trained side by side",
            expected="seeds that share the examples, or draws of them, of one store",
            received="several data seeds of a share of a store, of --order window or of --draw-from",
            remedy="leave --halving out, or give one data seed (--data-seeds 1 --init-seeds 3)"
            + (f", or --order {SHUFFLE}" if any(spec.order == WINDOW for spec in specs) else ""),
        )
