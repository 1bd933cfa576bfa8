"""What a sweep is: the product of choices over one store or a mix, as specs of runs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from fusionkit.errors import UsageError, unknown_name
from fusionkit.fit.choices import choose_fusion, choose_pool, choose_task
from fusionkit.fit.mixing import Mix
from fusionkit.fit.options import check_options
from fusionkit.fit.starting import Start, with_starts
from fusionkit.fusions import fusion_layers as layers_of
from fusionkit.specs import RunSpec, parse_layers
from fusionkit.store import Store


def expand(
    store: Store | Mix,
    *,
    task: str | None = None,
    label: str | None = None,
    pool: str | None = None,
    head: str | None = None,
    fusions: Sequence[str],
    fusion_layers: Sequence[str | None] = (None,),
    seeds: int = 1,
    lrs: Sequence[float] = (2e-3,),
    shots: Sequence[int | None] = (None,),
    epochs: Sequence[int] = (10,),
    batch_sizes: Sequence[int] = (32,),
    dropout: float = 0.0,
    weight_decay: float = 0.0,
    schedule: str = "linear",
    optimizer: str = "adamw",
    warmup: float = 0.0,
    clip_norm: float | None = None,
    label_smoothing: float = 0.0,
    class_weights: str = "none",
    patience: int | None = None,
    joint_fusion: str = "shared",
    starts: Sequence[Start] = (),
    init_part: str | None = None,
    freeze: str | None = None,
) -> list[RunSpec]:
    """Every run of a sweep over one store, or a mix; seed k is both ``data_seed`` and ``init_seed`` of trial k.

    Args:
        starts: finished runs, of which each run begins with the one that suits it. init_part: what it takes of that
            one, ``both`` unless said. freeze: the part that is not trained.

    Raises:
        UsageError: a name that does not exist, or a choice that the store or the head cannot serve.
    """
    mix = store if isinstance(store, Mix) else None
    chosen, column = choose_task(store, task, label) if isinstance(store, Store) else store.choose_task(task, label)
    if head is not None and head not in chosen.heads:
        raise unknown_name(f"head for {chosen.name}", head, chosen.heads)
    if joint_fusion != "shared" and chosen.name != "joint":
        raise UsageError(
            f"the task {chosen.name} has one head, and so one fusion",
            expected="--task joint",
            received=f"--joint-fusion {joint_fusion}",
            remedy="leave --joint-fusion out",
        )
    moved = [name for name, given in (("several stores", mix), ("--init-from", starts), ("--freeze", freeze)) if given]
    if moved and chosen.name in ("joint", "mlm"):
        raise UsageError(
            f"the task {chosen.name} is learned from one store, from the start and whole",
            expected="one store",
            received=", ".join(moved),
            remedy="transfer a task of one column",
        )
    fused = [choose_fusion(store, *choice) for choice in itertools.product(fusions, fusion_layers)]
    runs = [
        RunSpec(
            store=store.digest,
            task=chosen.name,
            label=column,
            fusion=fusion,
            fusion_layers=layers,
            head=head or chosen.heads[0],
            pool=choose_pool(store, chosen, pool, head),
            shots=shot,
            data_seed=seed,
            init_seed=seed,
            lr=lr,
            weight_decay=weight_decay,
            dropout=dropout,
            schedule=schedule,
            optimizer=optimizer,
            warmup=warmup,
            clip_norm=clip_norm,
            label_smoothing=label_smoothing,
            class_weights=class_weights,
            patience=patience,
            joint_fusion=joint_fusion,
            mix=None if mix is None else mix.text,
            evaluate_on=None if mix is None else mix.evaluate_on,
            freeze=freeze,
            epochs=epoch,
            batch_size=size,
        )
        for (fusion, layers), shot, lr, epoch, size, seed in itertools.product(
            fused, shots, lrs, epochs, batch_sizes, range(seeds)
        )
    ]
    for run in runs:
        check_options(run)
    if starts:
        encoder = store.manifest["identity"]["encoder"]
        runs = with_starts(runs, [read_layers(store, run) for run in runs], encoder, starts, init_part or "both")
    elif init_part is not None:
        raise UsageError("--init-part says what to take of a run", expected="--init-from RUN", received="none")
    # A choice given twice is one run: counted twice, it would narrow the interval of the mean.
    return list(dict.fromkeys(runs))


def read_layers(store: Store | Mix, spec: RunSpec) -> tuple[int, ...]:
    """The encoder's layers that a run's fusion reads."""
    count = store.manifest["encoder"]["layers"]
    chosen = None if spec.fusion_layers is None else parse_layers(spec.fusion_layers, count)
    return layers_of(spec.fusion, store.layers, count, chosen)
