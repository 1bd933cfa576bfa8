"""Finished runs of a study as one file of JSON lines: each run's spec, scores, curve and costs; no weights, no ids.

    {"study": "first-page", "made": [{"commit": …, "date": …, "hardware": …, …}], "encoding": {…}}      the head
    {"sweep": "SST-2", "digest": "95835d6367bc4312", "made": 0, "spec": {…}, …, "answers": "eJzt…"}      a run

``made`` of a run is the index of the entry in the head's list that says where and when it was trained; ``encoding`` has
the seconds that encoding each store took, by its digest. A spec leaves out fields that have their default. A curve is
one list per column. Numbers are rounded to 6 significant digits, except in specs, scores and thresholds. Compressed
``answers`` on test are for comparisons over examples, ``ablation`` is what ``fusionkit ablate`` found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from fusionkit.errors import UsageError
from fusionkit.io.files import write_durably
from fusionkit.runs.ablations import ablation_from, write_ablation
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

KEPT = ("finished", "stopped")  # the states of runs that are taken over; a failed run is tried again
TAKEN_FROM = "taken_from"  # field of a run.json: the file of records it was taken from; such a run has no weights
KEPT_ABLATION = "ablation"  # field of a record: what a folder of runs has as ablation.json
CLASSES = ("labels", "default")
# Ids and classes belong to the data set; weights and code are kept elsewhere.
LEFT_OUT = ("digest", "draw", "encoding", *CLASSES, "sources", "weights_sha256", TAKEN_FROM)
UNROUNDED = ("spec", "score", "validation_score", "scores", "tests", "threshold")  # their numbers keep all digits
COLUMNS = ("epoch", "loss", "validation_score")  # of a curve
DEFAULTS = {each.name: each.default for each in fields(RunSpec) if each.default is not MISSING}
DIGITS = 6


def read_records(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head of a file, empty where it has none, and its runs in order.

    Returns:
        the head, and for each run its record as ``run.json`` has it, with ``sweep``, ``digest`` and, where the file has
        it, ``made`` added.

    Raises:
        UsageError: the file cannot be read or holds no runs, a line is no record, or a spec does not have the line's
            digest.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else "no UTF-8"
        raise UsageError(f"{path} cannot be read", expected="a file of records", received=told) from error
    head: dict[str, Any] = {}
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        value = _parsed(line, f"{path}, line {number}")
        if number == 1 and "spec" not in value:
            head = value
        else:
            found.append(_read(value, f"{path}, line {number}"))
    if not found:
        raise UsageError(
            f"{path} holds no records",
            expected="a JSON object a line, each a finished run, as docs/records/*.jsonl have them",
            received="a head alone" if head else "an empty file",
            remedy="check the path",
        )
    return head, found


def known_runs(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """The finished and stopped runs of some files: their records by digest, as a folder of runs keeps them. Of two
    records of one run a finished one wins.

    Raises:
        UsageError: as for :func:`read_records`.
    """
    known: dict[str, dict[str, Any]] = {}
    for path in paths:
        for record in read_records(path)[1]:
            kept = {name: value for name, value in record.items() if name not in ("sweep", "digest", "made")}
            there = known.get(record["digest"])
            if record["status"] in KEPT and (there is None or there["status"] != "finished"):
                known[record["digest"]] = {**kept, TAKEN_FROM: str(path)}
    return known


def write_taken(folder: RunsFolder, record: Mapping[str, Any]) -> None:
    """Write a record of a file into a folder of runs, without weights, and its ablation where the run was ablated. The
    ablation comes first: a run with a record is not looked at again, so after a kill its ablation would be missing.
    """
    spec = RunSpec.from_dict(record["spec"])
    if (found := record.get(KEPT_ABLATION)) is not None:
        write_ablation(folder.path / spec.digest, ablation_from(found, record.get(TAKEN_FROM, "a record")))
    folder.write(spec, {name: value for name, value in record.items() if name != KEPT_ABLATION}, {})


def write_records(path: Path, head: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> None:
    """Write a file durably: a head, and records with their ``sweep`` in the order given."""
    lines = [_json(head), *map(record_line, records)]
    write_durably(path, ("\n".join(lines) + "\n").encode())


def record_line(record: Mapping[str, Any]) -> str:
    """A record with its ``sweep`` as a line; one that was read from a file gives the same line again."""
    spec = RunSpec.from_dict(record["spec"])
    first = {"sweep": record["sweep"], "digest": spec.digest, **({"made": record["made"]} if "made" in record else {})}
    told = {name: value for name, value in record.items() if name not in (*LEFT_OUT, *first, "spec", "curve")}
    if others := told.get("others"):
        left = (*CLASSES, "draw")
        told["others"] = {name: {k: v for k, v in each.items() if k not in left} for name, each in others.items()}
    if parts := told.get("parts"):
        told["parts"] = [{k: v for k, v in each.items() if k not in LEFT_OUT} for each in parts]
    kept = {name: value for name, value in _rounded(told).items() if name == "score" or value not in (None, {}, [])}
    chosen = {k: v for k, v in spec.to_dict().items() if k not in DEFAULTS or v != DEFAULTS[k]}
    return _json({**first, "spec": chosen, **kept, "curve": _rounded(_columns(record.get("curve") or []))})


def _read(value: dict[str, Any], where: str) -> dict[str, Any]:
    spec = value.get("spec")
    if not isinstance(spec, dict) or not isinstance(value.get("status"), str):
        raise UsageError(
            f"{where}: no record of a run",
            expected="an object with `spec`, `status` and scores, as docs/records/*.jsonl have them",
            received=", ".join(value) or "an empty object",
            remedy="remove that line",
        )
    try:
        full = RunSpec.from_dict(spec)
    except UsageError as error:
        raise error.at(where, remedy="remove that line") from error
    if full.digest != value.get("digest"):
        raise UsageError(
            f"{where}: the spec is that of another run",
            expected=f"digest {full.digest}",
            received=f"digest {value.get('digest')}",
            remedy="remove that line; `fusionkit run` trains the run again",
        )
    return {**value, "spec": full.to_dict(), "curve": _rows(value.get("curve") or [], where)}


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{where}: no JSON", expected="a JSON object", received=str(error), remedy="mend or remove that line"
        ) from error
    if not isinstance(value, dict):
        raise UsageError(f"{where}: no JSON object", received=type(value).__name__, remedy="mend or remove that line")
    return value


def _columns(curve: Sequence[Mapping[str, Any]]) -> Any:
    """A curve as one list per column if it has the usual columns and its epochs count from 1; else as it is."""
    plain = all(set(row) == {*COLUMNS} and row["epoch"] == number for number, row in enumerate(curve, 1))
    return {name: [row[name] for row in curve] for name in COLUMNS[1:]} if plain and curve else list(curve)


def _rows(curve: Any, where: str) -> list[dict[str, Any]]:
    """The inverse of :func:`_columns`."""
    if isinstance(curve, list):
        return curve
    try:
        together = zip(*(curve[name] for name in COLUMNS[1:]), strict=True)
        return [dict(zip(COLUMNS, (number, *row), strict=True)) for number, row in enumerate(together, 1)]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: no curve", expected="loss and validation_score, equally long") from error


def _rounded(value: Any) -> Any:
    """The value with all its floats rounded to :data:`DIGITS` significant digits, except in :data:`UNROUNDED`."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: each if name in UNROUNDED else _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
