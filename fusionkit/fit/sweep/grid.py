"""The runs of a sweep: the product of all choices, over one store, a mixture of stores, or a store for each task."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fusionkit.dataset.draws import check_draw
from fusionkit.dataset.mixture import Mix
from fusionkit.dataset.share import Share
from fusionkit.dataset.stores import Stores, choose_tasks_of, refuse_other_rows
from fusionkit.dataset.task_stores import TaskStores
from fusionkit.errors import UsageError, unknown_name
from fusionkit.fit.loader.sampler import usual_order
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.fit.model.warm_start import with_starts
from fusionkit.fit.sweep.checks import check_watched, seed_pairs
from fusionkit.fit.sweep.fixed_draws import FixedDraws, with_draws
from fusionkit.fit.sweep.from_layer import start_layer
from fusionkit.fit.sweep.fusion_choices import choose_fusion, choose_pool
from fusionkit.fit.sweep.method_choices import method_spelling, options_for, refuse_strays
from fusionkit.fit.sweep.multi import check_multi, refuse_of_tasks
from fusionkit.fit.train.schedule import check_options
from fusionkit.fusions import fusion_layers as layers_of
from fusionkit.methods.table import parse_method
from fusionkit.names import EVERY_LAYER
from fusionkit.options.entry import SWEPT, joined
from fusionkit.options.tables import FIT
from fusionkit.specs import AUTO, FROZEN, MASKED, MDL_BLOCKS, SHUFFLE, RunSpec, parse_layers
from fusionkit.tasks import Task
from fusionkit.tasks.head_check import is_external
from fusionkit.tasks.joint import fitting_heads, text_of

USUAL = ("last", "linear", "concat", "attention")
OF_SWEEPS = ("halving", "floor", "budget_per_task", "init_from", "draw_from")
WIDTH_KEEPING = ("last", "linear", "concat-affine", "attention")  # an encoder's LM head can read their output


def expand(
    store: Stores,
    *,
    task: str | Mapping[str, str] | None = None,
    label: str | Mapping[str, str] | None = None,
    pool: str | None = None,
    head: str | Mapping[str, str] | None = None,
    methods: Sequence[str] = (FROZEN,),
    fusions: Sequence[str] = (),
    fusion_layers: Sequence[str | None] = (None,),
    seeds: int | None = None,
    data_seeds: int | None = None,
    init_seeds: int | None = None,
    shots: Sequence[int | None] = (),
    draw: str = "uniform",
    draws: Sequence[FixedDraws] = (),
    validate_on: int | str | None = None,
    order: str = AUTO,
    joint_fusion: str = "shared",
    control: bool = False,
    mdl: bool = False,
    starts: Sequence[TrainedRun] = (),
    init_part: str | None = None,
    freeze: str | None = None,
    **options: Any,
) -> list[RunSpec]:
    """Every run of a sweep; UsageError for a choice that the store or the head does not support.

    Args:
        task: a task, or several by their names, ``{"topic": "classification", "slots": "tagging"}``. label: the column;
            for several tasks the columns that are not named like their task, by the task's name. head: for several
            tasks the heads that are not the default, by the task's name.
        methods: what is trained of the encoder. fusions: by default four that suit the store.
        seeds: the number of trials; trial k has k as ``data_seed`` and as ``init_seed``.
        data_seeds, init_seeds: numbers of seeds; each data seed is combined with each init seed. draws: the examples to
            draw again, by ``data_seed`` and ``shots``, or one list of them. shots: by default those of ``draws``, else
            all of train.
        validate_on: a number of validation examples, or a share of those that the store has, ``10%``.
        order: ``shuffle`` or ``window``; ``auto`` is :func:`usual_order` for runs on all of train, ``shuffle`` for
            draws.
        control: each run also on control labels. mdl: each run also on each block of an online code.
        starts: finished runs; each run starts from the one that suits it. init_part: the part that is taken, ``both``
            unless given. freeze: the part that is not trained.
        options: of training, as :class:`~fusionkit.specs.RunSpec` has them: ``dropout=0.1``. Options whose flag can be
            repeated take several values: ``epochs=(5, 10)``; ``lrs``, ``batch_sizes``.
    """
    mix = store if isinstance(store, Mix) else None
    multi = store if isinstance(store, TaskStores) else None
    if multi is None:
        refuse_of_tasks(options)
    else:
        beside = {"--draw-from": draws, "--control": control, "--mdl": mdl, "--init-from": starts}
        check_multi({"task": task, "label": label, "head": head}, methods, multi, beside)
    columns = choose_tasks_of(store, joined(task), joined(label))
    tasks = {name: each for name, (each, _) in columns.items()}
    if len(tasks) > 1 and (split := [column for _, column in columns.values() if "," in column]):
        raise UsageError(
            f"the name of the column {split[0]!r} has a comma, which separates the columns of several tasks",
            remedy="rename it in the source and encode again, or train one task",
        )
    heads = fitting_heads(tasks, joined(head) or usual_head(store)) if multi is None else multi.heads
    whole = text_of(tasks)
    if joint_fusion != "shared" and len(tasks) == 1:
        raise UsageError(
            f"the task {whole} has one head, and so one fusion",
            expected="--task joint, or several tasks",
            received=f"--joint-fusion {joint_fusion}",
            remedy="leave --joint-fusion out",
        )
    moved = [name for name, given in (("several stores", mix), ("--init-from", starts), ("--freeze", freeze)) if given]
    if moved and whole == "mlm":
        raise UsageError(
            f"the task {whole} trains over one store, from new weights, and no part is frozen",
            expected="one store, without --init-from and --freeze",
            received=", ".join(moved),
            remedy="leave these out, or train another task",
        )
    if draws and draw != "uniform":
        raise UsageError(
            "--draw and --draw-from exclude each other",
            expected="--draw or --draw-from",
            received=f"--draw {draw} with --draw-from",
            remedy="leave --draw out",
        )
    methods = tuple(dict.fromkeys(map(method_spelling, methods or (FROZEN,))))
    refuse_strays(methods, options)
    if any(method != FROZEN for method in methods):
        refuse_other_rows(store)
    asked_layer = options.pop("from_layer", AUTO)
    start_layers = {method: start_layer(store, method, asked_layer) for method in methods}
    kinds: list[tuple[bool, int | None]] = [(False, None)]
    if control:
        _check_control(methods, whole, draw, bool(starts))
        kinds += [(True, None)]
    if mdl:
        _check_mdl(methods, tasks, heads, draw, shots, bool(starts) or bool(draws))
        kinds += [(False, block) for block in range(1, MDL_BLOCKS + 1)]
    fusions = fusions or usual_fusions(store)
    shots = shots or sorted({one.run.shots for one in draws if one.run and one.run.shots}) or [None]
    watched = watched_count(store, validate_on)
    ordered, drawn = (usual_order(store), SHUFFLE) if order == AUTO else (order, order)
    fused = {
        method: [
            choose_fusion(store, fusion, layers, method)
            for name in fusions
            for fusion, layers in itertools.product(layer_by_layer(store, name, method), fusion_layers)
        ]
        for method in methods
    }
    # Words are never pooled: a run pools for its other tasks, if it has any.
    pooling = next((each for each in tasks.values() if each.unit != "word"), next(iter(tasks.values())))
    pooled = choose_pool(store, pooling, pool, heads)
    runs = [
        RunSpec(
            store=store.digest,
            task=whole,
            label=",".join(column for _, column in columns.values()),
            fusion=fusion,
            fusion_layers=layers,
            head=heads,
            pool=pooled,
            shots=shot,
            draw=draw,
            data_seed=data_seed,
            init_seed=init_seed,
            validate_on=watched,
            order=ordered if shot is None and not draws else drawn,
            joint_fusion=joint_fusion,
            control=control_labels,
            mdl=block,
            mix=None if mix is None else mix.text,
            evaluate_on=None if mix is None else mix.evaluate_on,
            freeze=freeze,
            task_stores=None if multi is None else multi.text,
            task_batches=None if multi is None else multi.batches,
            method=method,
            from_layer=start_layers[method],
            **trained,
        )
        for control_labels, block in kinds
        for method in methods
        for (fusion, layers), shot, trained, (data_seed, init_seed) in itertools.product(
            fused[method],
            shots,
            _settings(options_for(method, options)),
            seed_pairs(seeds, data_seeds, init_seeds),
        )
    ]
    runs = with_draws(runs, draws) if draws else runs
    for run in runs:
        check_options(run)
        check_draw(run)
    if starts:
        encoder = store.manifest["identity"]["encoder"]
        runs = with_starts(runs, [read_layers(store, run) for run in runs], encoder, starts, init_part or "both")
    elif init_part is not None:
        raise UsageError(
            "--init-part says what to take of a run",
            expected="--init-from RUN",
            received="none",
            remedy="add --init-from, or leave --init-part out",
        )
    # A choice given twice is one run: counted twice, it would narrow the interval of the mean.
    return list(dict.fromkeys(runs))


def usual_fusions(store: Stores) -> Sequence[str]:
    """The fusions of a sweep that names none."""
    return WIDTH_KEEPING if store.rows == MASKED else USUAL


def usual_head(store: Stores) -> str | None:
    """The head of a sweep that names none, None for the task's default: an LM head of embeddings is to be trained."""
    made = store.rows == MASKED and "made_of" in store.manifest["identity"]["mlm"]["lm_head"]
    return "lm-head-trained" if made else None


def layer_by_layer(store: Stores, fusion: str, method: str) -> list[str]:
    """The fusions that a name stands for: for :data:`EVERY_LAYER` each stored layer alone that the method changes, all
    layers with a frozen encoder; else the name itself.

    Raises:
        UsageError: the method changes no layer that is stored.
    """
    if fusion != EVERY_LAYER:
        return [fusion]
    depth = store.manifest["encoder"]["layers"] - 1
    lowest = 0 if method == FROZEN else parse_method(method).lowest_changed(depth)
    found = [f"layer:{layer}" for layer in store.layers if layer >= lowest]
    if not found:
        raise UsageError(
            f"the method {method} changes none of the stored layers",
            expected=f"a store with layer {lowest} or one above it",
            received=", ".join(map(str, store.layers)),
            remedy=f"encode with such a layer, or train {EVERY_LAYER} with --method frozen",
        )
    return found


def _settings(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Training options by field, for each combination of the given values; UsageError for an unknown option."""
    # OF_SWEEPS are options of a sweep, not of a run; `starts` and `draws` are two of them, opened.
    known = {entry.parameter: entry for entry in FIT.values() if entry.name not in OF_SWEEPS}
    for name in options:
        if name not in known:
            raise unknown_name("option of a sweep", name, known)
    swept = {
        entry.name: options[name] if isinstance(options[name], (tuple, list)) else (options[name],)
        for name, entry in known.items()
        if name in options and entry.lists == SWEPT
    }
    single = {known[name].name: value for name, value in options.items() if known[name].lists != SWEPT}
    return [{**single, **dict(zip(swept, values, strict=True))} for values in itertools.product(*swept.values())]


def _check_control(methods: Sequence[str], task: str, draw: str, starts: bool) -> None:
    """Refuse control labels where they say nothing: they are for new heads over one frozen encoder."""
    strays = {
        "--task mlm": task == "mlm",
        "a --method that trains through the encoder": any(method != FROZEN for method in methods),
        "--init-from": starts,
        "--draw stratified": draw == "stratified",  # it would draw other examples than those of the real labels
    }
    if wrong := [name for name, given in strays.items() if given]:
        raise UsageError(
            "--control compares heads over a frozen encoder on the same examples",
            expected="a task of labels, heads that start anew, --draw uniform or nested",
            received=", ".join(wrong),
            remedy="leave --control out, or the other",
        )


def _check_mdl(
    methods: Sequence[str], tasks: Mapping[str, Task], heads: str, draw: str, shots: Sequence[int | None], given: bool
) -> None:
    """Refuse an online code where there are no labels to code, or no blocks of a nested draw to learn from."""
    several = any(shot is not None for shot in shots)
    strays = {
        f"the task {text_of(tasks)}": len(tasks) > 1 or any(t.numeric or t.unit == "row" for t in tasks.values()),
        f"the head {heads}": is_external(heads),
        "a --method that trains through the encoder": any(method != FROZEN for method in methods),
        "--init-from or --draw-from": given,
        f"--shots with --draw {draw}": several and draw != "nested",
    }
    if wrong := [name for name, stray in strays.items() if stray]:
        raise UsageError(
            "--mdl codes the labels of one task, in blocks of the nested draw",
            expected="labels or tags, a head of fusionkit's own over a frozen encoder, all of train or --draw nested",
            received=", ".join(wrong),
            remedy="leave --mdl out, or the other",
        )


def watched_count(store: Stores, given: int | str | None) -> int | None:
    """The number of validation examples that are scored during training, from a number or a share of the stored ones;
    None for all.

    UsageError if it is neither, or a share of a split that is not stored.
    """
    if not isinstance(given, str):
        return given
    part = check_watched(given)
    if part is None:
        return None
    if not part.endswith("%"):
        return int(part)
    if isinstance(store, TaskStores):
        raise UsageError(
            "of several tasks --validate-on is a number of examples of each",
            expected="a number like 200",
            received=f"--validate-on {given}",
            remedy="choose a number, like --validate-on 200",
        )
    chooser = store.evaluation_stores[0] if isinstance(store, Mix) else store
    if "validation" not in chooser.splits:
        raise UsageError(
            f"{chooser.path} has no validation split of examples to take a share of",
            expected="a number of examples",
            received=f"--validate-on {given}",
            remedy="choose a number, like --validate-on 800",
        )
    return Share(chooser, part).count(len(chooser["validation"]))


def read_layers(store: Stores, spec: RunSpec) -> tuple[int, ...]:
    """The encoder's layers that a run's fusion reads."""
    count = store.manifest["encoder"]["layers"]
    chosen = None if spec.fusion_layers is None else parse_layers(spec.fusion_layers, count)
    return layers_of(spec.fusion, store.layers, count, chosen)
