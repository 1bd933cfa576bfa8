"""Which tasks a data set serves, for a run of several tasks over stores of their own.

Of the tasks whose column of labels the data set has, these are the ones that learned from it; if none did, those of its
name (``fit`` names tasks by their stores); if none has its name, all of them. ``--task`` chooses where these rules
cannot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from fusionkit.errors import UsageError, unknown_name
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.io.places import Place
from fusionkit.sources import FORMATS


@dataclass(frozen=True)
class Offer:
    """A data set. Attributes: place: where it is. columns: its columns. digest: a store's, as in specs; None for a
    source.
    """

    place: Place
    columns: Collection[str]
    digest: str | None = None


def key_of(run: TrainedRun) -> str:
    """The user's name for a head: the column that it learned, or its task where each has data of its own."""
    return run.name if run.apart else run.spec.label


def column_of(run: TrainedRun, named: Mapping[str, str]) -> str:
    """The column with a head's labels: the one that the user names by :func:`key_of`, else the one it learned."""
    return named.get(key_of(run), run.spec.label)


def chosen(runs: Sequence[TrainedRun], tasks: Sequence[str]) -> list[TrainedRun]:
    """Runs with only the tasks that the user names. Runs without several tasks over stores of their own stay as they
    are; runs that have none of the named tasks are left out.

    Raises:
        UsageError: an unknown task, or no run that has several such tasks.
    """
    known = list(dict.fromkeys(name for run in runs if run.apart for name in run.parts))
    if tasks and not known:
        raise UsageError(
            "--task chooses among several tasks over stores of their own",
            expected="a run of `fusionkit fit --task multi`",
            received=", ".join(run.folder.name for run in runs),
            remedy="leave --task out",
        )
    for name in tasks:
        if name not in known:
            raise unknown_name("task of these runs", name, known)
    found = []
    for run in runs:
        own = {name: part for name, part in run.parts.items() if name in tasks}
        if not (tasks and run.apart):
            found.append(run)
        elif own:
            found.append(run.of_parts(own))
    return found


def served(run: TrainedRun, offer: Offer, named: Mapping[str, str], tasks_named: bool) -> TrainedRun | None:
    """The run with those of its tasks that a data set serves; None where it serves none.

    Args:
        named: as for :func:`column_of`. tasks_named: whether the user has said which tasks the data set serves.

    Raises:
        UsageError: two tasks would read one column, and no rule says which of them is meant.
    """
    if not run.apart or tasks_named:
        return run
    parts, name = run.parts, offer.place.name
    path = PurePath(name)
    stem = path.stem if path.suffix.lower() in {*FORMATS, ".store"} else name
    there = [name for name, part in parts.items() if column_of(part, named) in offer.columns]
    own = [name for name in there if parts[name].spec.store == offer.digest]
    of_name = [name for name in there if name == stem or name.startswith(f"{stem}-")]
    names = own or of_name or there
    columns = {name: column_of(parts[name], named) for name in names}
    if twice := [column for column, count in Counter(columns.values()).items() if count > 1]:
        raise UsageError(
            f"several tasks of the run {run.folder.name} read a column {twice[0]!r}, and {offer.place} may be of each",
            expected="the name of its task",
            received=", ".join(name for name in names if columns[name] == twice[0]),
            remedy=f"name it: --task {names[0]}",
        )
    return run.of_parts({name: parts[name] for name in names}) if names else None
