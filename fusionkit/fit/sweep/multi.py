"""Several tasks as a user names them: stores with ``--task multi``, or a list of tasks in a file.

    fusionkit fit sst2.store atis.store --task multi --label atis=intent --label atis=slots --head atis-slots=crf

A task is named like its store's folder. If a store has several tasks, the name is store and column: ``atis-slots``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fusionkit.errors import UsageError, unknown_name
from fusionkit.fit.sweep.checks import CHECKS
from fusionkit.methods.table import parse_method
from fusionkit.options.entry import NONE, OptionInfo
from fusionkit.options.tables import FIT, by_flag
from fusionkit.options.yaml_file import YamlNode, read_options, shown
from fusionkit.options.yaml_texts import Keys
from fusionkit.specs import MULTI, OF_TASKS
from fusionkit.tasks.joint import is_multi, refuse_twice

if TYPE_CHECKING:
    from fusionkit.dataset.share import Share
    from fusionkit.dataset.stores import Stores
    from fusionkit.dataset.task_stores import TaskChoice, TaskStores
    from fusionkit.store import Store

NAMED = ("task", "label", "head")


def named_tasks(
    shares: Sequence[Share], task: str | None = None, label: str | None = None, head: str | None = None
) -> list[TaskChoice]:
    """The tasks of several stores, from the user's options, whose values are joined by commas.

    Args:
        task: ``multi``, then ``NAME=TASK`` where the columns suggest another task. label: ``NAME=COLUMN`` by the names
            of stores; a store that is named several times has several tasks. head: ``NAME=HEAD`` by the names of tasks.

    Raises:
        UsageError: a share of a store, an unknown name, or a value without a name.
    """
    from fusionkit.dataset.task_stores import TaskChoice

    stores: list[tuple[str, Store]] = []
    for share in shares:
        if share.part is not None:
            raise UsageError(
                f"several tasks learn from whole stores, or from --shots of each: not from {share.part} of one",
                expected=str(share.store.path),
                received=f"{share.store.path}:{share.part}",
                remedy="leave the share out",
            )
        stores.append((share.store.path.name.removesuffix(".store"), share.store))
    columns: dict[str, list[str | None]] = {name: [] for name, _ in stores}
    for name, column in _pairs("label", label, columns):
        columns[name].append(column)
    found = [
        (f"{name}-{column}" if len(columns[name]) > 1 else name, store, column)
        for name, store in stores
        for column in columns[name] or [None]
    ]
    names = [name for name, _, _ in found]
    kinds = _one_each("task", None if task is None else task.partition(",")[2], names)
    heads = _one_each("head", head, names)
    return [TaskChoice(name, store, kinds.get(name), column, heads.get(name)) for name, store, column in found]


def _one_each(flag: str, text: str | None, known: Collection[str]) -> dict[str, str]:
    pairs = _pairs(flag, text, known)
    refuse_twice(flag, [name for name, _ in pairs], text)
    return dict(pairs)


def _pairs(flag: str, text: str | None, known: Collection[str]) -> list[tuple[str, str]]:
    found = []
    for part in text.split(",") if text else []:
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise UsageError(
                f"--{flag} of several tasks says which of them",
                expected=f"NAME={flag.upper()}, with a name like {next(iter(known))}",
                received=part,
                remedy=f"write --{flag} {next(iter(known))}={part.rpartition('=')[2] or flag.upper()}",
            )
        if name not in known:
            raise unknown_name("task", name, known)
        found.append((name, value))
    return found


def check_multi(
    given: Mapping[str, Any],
    methods: Sequence[str],
    store: TaskStores,
    beside: Mapping[str, object],
) -> None:
    """Refuse what runs of several tasks over stores of their own cannot have (UsageError).

    Args:
        beside: options by flag, each of which is refused if it is given.
    """
    for name in ("task", "label", "head"):
        if given.get(name) is not None:
            raise UsageError(
                f"--{name} is given for each task, where its store is named",
                expected=f"{name} of each task: in `tasks:` of a file, or in its TaskChoice",
                received=f"--{name} {given[name]}",
                remedy=f"move {name} there",
            )
    masked = any(task.unit == "row" for task, _ in store.tasks.values())
    wrong = {name: bool(value) for name, value in beside.items()} | {"masked language modelling": masked}
    wrong |= {f"--method {each}": True for each in methods if parse_method(each).entry.shared == "alone"}
    if names := [name for name, asked in wrong.items() if asked]:
        raise UsageError(
            f"several tasks over stores of their own cannot have {names[0]}",
            expected="runs from the start, on real labels, of methods whose weights are all that they keep",
            received=", ".join(names),
            remedy="leave it out, or train a run for each task",
        )


def refuse_of_tasks(given: Mapping[str, Any]) -> None:
    """Refuse options of several tasks where there is one store, or one task (UsageError)."""
    for entry in FIT.values():
        if entry.name in OF_TASKS and entry.parameter in given:
            raise UsageError(
                f"--{entry.flag} applies only to several tasks over stores of their own",
                expected=f"--task {MULTI} and a store for each task",
                received=f"--{entry.flag} without it",
                remedy=f"leave --{entry.flag} out, or add --task {MULTI}",
            )


# The options of one task in a list of `tasks:` in a file.
TASK = by_flag(
    OptionInfo(name="name", help="Name of the task.", lists=NONE),
    OptionInfo(name="store", help="Its store; in a study the name of a source.", lists=NONE),
    *(replace(FIT[flag], lists=NONE, named=False, parameter=flag.replace("-", "_"))
      for flag in ("task", "label", "head", "batch-size")),
)  # fmt: skip


def read_tasks(written: YamlNode, keys: Keys, value: Any) -> list[dict[str, Any]]:
    """The tasks of a list in a file, by parameter; ``store`` is the text in the file.

    Raises:
        UsageError: no list of blocks, an unknown key, or a task without a name or store.
    """
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise written.wrong(
            keys,
            "'tasks' is a list of tasks",
            expected="blocks with name and store, each behind a dash",
            received=shown(value),
            remedy="write `- {name: sst2, store: sst2.store}` below it",
        )
    found = []
    for number, block in enumerate(value):
        at = (*keys, str(number))
        for key in block:
            written.among((*at, key), "key of a task", key, TASK)
        read = read_options(written, at, block, TASK, {name: CHECKS[name] for name in ("task", "head")})
        if missing := [name for name in ("name", "store") if name not in read]:
            raise written.wrong(at, f"a task has no {missing[0]}", expected="name and store", received=shown(block))
        found.append(read)
    return found


def opened(
    shares: Sequence[Share],
    judges: Sequence[Store],
    blocks: Sequence[Mapping[str, Any]],
    tasks: Sequence[tuple[Mapping[str, Any], Store]] = (),
) -> tuple[Stores, list[dict[str, Any]]]:
    """The stores that a sweep is trained over, and its blocks. With ``--task multi``, the tasks, labels and heads that
    blocks name are taken out of them, as the stores hold them.

    Args:
        tasks: those of a file, each with its store; none where ``shares`` are the stores.

    Raises:
        UsageError: only some blocks have several tasks over stores of their own, blocks name these tasks differently,
            or there are ``judges`` for them; and as :class:`fusionkit.dataset.task_stores.TaskStores`.
    """
    from fusionkit.dataset.mixture import mix_of
    from fusionkit.dataset.task_stores import TaskChoice, TaskStores

    asked = [is_multi(block.get("task")) for block in blocks]
    if not tasks and not any(asked):
        return mix_of(shares, judges), [dict(block) for block in blocks]
    if judges:
        raise UsageError(
            "--evaluate-on names a store to judge one task by",
            expected="none: each of several tasks is judged by its own store",
            received=", ".join(str(store.path) for store in judges),
            remedy="leave --evaluate-on out",
        )
    if tasks:
        return TaskStores([TaskChoice(**{**told, "store": store}) for told, store in tasks]), [dict(b) for b in blocks]
    names = [{name: block.get(name) for name in NAMED} for block in blocks]
    if not all(asked) or any(each != names[0] for each in names):
        raise UsageError(
            "all runs of a sweep learn the same tasks",
            expected=f"one --task {MULTI}, --label and --head for all blocks",
            received="; ".join(", ".join(f"{k} {v}" for k, v in each.items() if v) or "none" for each in names),
            remedy="let them stand above `runs:`, or write two sweeps",
        )
    kept = [{name: value for name, value in block.items() if name not in NAMED} for block in blocks]
    return TaskStores(named_tasks(shares, **names[0])), kept
