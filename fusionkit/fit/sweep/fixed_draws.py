"""Fixed draws: new runs train on the examples that earlier runs drew, or on a list of ids.

The spec of a run holds a digest of the ids, so that equal specs mean equal work. The ids are passed beside the spec.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fusionkit.errors import StoreError, UsageError, first_line
from fusionkit.io.files import read_json
from fusionkit.plural import counted
from fusionkit.runs.find_run import find_run
from fusionkit.runs.folder import RECORD
from fusionkit.runs.records_file import TAKEN_FROM
from fusionkit.specs import GIVEN, RunSpec, digest_of
from fusionkit.tasks import parts_of


@dataclass(frozen=True)
class FixedDraws:
    """Examples to be drawn again.

    Attributes:
        ids: their ids. run: the spec of the run that drew them; None for a list, which suits every run.
        data: the name of the data that they were drawn from; None where it is unknown.
    """

    ids: tuple[str, ...]
    run: RunSpec | None = None
    data: str | None = None

    @cached_property
    def digest(self) -> str:
        """The digest of the ids as a set: a run trains on them in the order of its seed, not of the list."""
        return digest_of(sorted(self.ids))


def open_draws(place: str | Path | tuple[str, ...]) -> list[FixedDraws]:
    """The draws of a JSON file with a list of ids, or of finished runs, also of several in one folder; UsageError for
    anything else.
    """
    places: tuple[str | Path, ...] = place if isinstance(place, tuple) else (place,)
    path = Path(places[0]).expanduser() if len(places) == 1 else Path(places[0]).parent
    if path.is_file():
        return [FixedDraws(_listed(path))]
    records = [read_json(folder / RECORD) for each in places for folder in find_run(each)]
    drew = [record for record in records if record.get("draw")]
    try:
        found = [each for record in drew for each in _draws_of(record)]
    except (KeyError, TypeError, UsageError) as error:
        raise StoreError(f"a record in {path} is damaged", received=first_line(error)) from error
    if not found:
        taken = any(TAKEN_FROM in record for record in records)
        raise UsageError(
            f"{path} holds no draw",
            expected="runs that were fitted with --shots, or a JSON file with a list of ids",
            received=f"{counted(len(records), 'run')} {'without ids' if taken else 'on all of train'}",
            remedy="train that run here: its record was taken from a file" if taken else "name runs that drew examples",
        )
    return found


def _draws_of(record: Mapping[str, Any]) -> list[FixedDraws]:
    """The draw of a run; of a run of several tasks over stores of their own that of each task."""
    spec = RunSpec.from_dict(record["spec"])
    if not spec.is_multi:
        return [FixedDraws(tuple(record["draw"]), spec, record.get("data"))]
    others = record["others"]
    return [
        FixedDraws(tuple(others.get(name, record)["draw"]), part, others.get(name, {}).get("data"))
        for name, part in parts_of(spec).items()
    ]


def with_draws(specs: Sequence[RunSpec], drawn: Sequence[FixedDraws]) -> list[RunSpec]:
    """Each run with the examples that were drawn by its ``data_seed`` and ``shots``, or with those of the one list.

    Draws of runs over the same store, then with the same task and column, are preferred. UsageError if there is no such
    draw or there are different ones, and for a number of shots with a list.
    """
    return [dataclasses.replace(spec, draw=GIVEN, draw_ids=_drawn_for(spec, drawn).digest) for spec in specs]


def _drawn_for(spec: RunSpec, drawn: Sequence[FixedDraws]) -> FixedDraws:
    for one in drawn:
        if one.run is None:
            if spec.shots is not None:
                raise UsageError(
                    "a list of ids already fixes the number of examples",
                    expected="--draw-from FILE.json alone",
                    received=f"--shots {spec.shots} beside it",
                    remedy="leave --shots out",
                )
            return one
    ours = (spec.data_seed, spec.shots)
    runs = [(one, one.run) for one in drawn if one.run is not None]
    found = [(one, run) for one, run in runs if (run.data_seed, run.shots) == ours]
    for names in (("store", "mix"), ("task", "label")):
        alike = [(one, run) for one, run in found if all(getattr(run, n) == getattr(spec, n) for n in names)]
        found = alike or found
    if len({one.digest for one, _ in found}) != 1:
        there = sorted({(run.shots or 0, run.data_seed) for _, run in runs})
        told = ", ".join(f"{counted(shots, 'shot')} by seed {seed}" for shots, seed in there[:8]) + (
            "…" if there[8:] else ""
        )
        what = "different draws" if found else "no draw"
        raise UsageError(
            f"the runs have {what} of {counted(spec.shots or 0, 'shot')} by data seed {spec.data_seed}",
            expected="one for each data seed and number of shots",
            received=", ".join(f"{run.digest} ({run.draw})" for _, run in found[:6]) if found else told,
            remedy="choose --shots and seeds among these, or give the ids as a list in a JSON file",
        )
    return found[0][0]


def _listed(path: Path) -> tuple[str, ...]:
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is no JSON file",
            expected='a JSON list of example ids, like ["12", "40"]',
            received=first_line(error),
            remedy="check the path and the file",
        ) from error
    sound = isinstance(values, list) and all(isinstance(v, (str, int)) and not isinstance(v, bool) for v in values)
    ids = tuple(map(str, values)) if sound else ()
    twice = [one for one, times in Counter(ids).items() if times > 1]
    if not ids or twice:
        raise UsageError(
            f"{path} is no list of ids",
            expected='a JSON list of example ids, each once, like ["12", "40"]',
            received=f"{twice[0]!r} twice" if twice else json.dumps(values)[:60],
            remedy="write the ids of the examples to train on, and nothing else",
        )
    return ids


def strange_draws(drawn: Iterable[FixedDraws], specs: Iterable[RunSpec], data: str) -> list[str]:
    """Notes on draws from data with another name, whose ids may belong to other examples here."""
    used = {spec.draw_ids for spec in specs}
    names = sorted({one.data for one in drawn if one.data not in (None, data) and one.digest in used})
    return [f"--draw-from: examples of {name} are drawn from {data}, by their ids alone" for name in names]
