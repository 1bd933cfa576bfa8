"""Kept answers as bytes, for the folder of a run, and as text, for a file of records."""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Mapping

import numpy as np

from fusionkit.statistics.kept_answers import NATS, SPANS, Array, KeptAnswers, RunAnswers

MOST_BYTES = 1 << 28  # of the answers in one record, unpacked


def to_text(answers: Mapping[str, RunAnswers]) -> str | None:
    """The answers as text, for a file of records; those of a span tagger without their words, half of the bytes. None
    for answers of :data:`MOST_BYTES` or more, which no reader takes: they are left out.
    """
    brief = {d: RunAnswers({k: _brief(v) for k, v in run.parts.items()}, run.frame) for d, run in answers.items()}
    content = to_bytes(brief)
    return None if len(content) >= MOST_BYTES else base64.b64encode(zlib.compress(content, 9)).decode("ascii")


def _brief(part: KeptAnswers) -> KeptAnswers:
    arrays = {name: each for name, each in part.arrays.items() if name not in ("words", "wrong")}
    return dataclasses.replace(part, arrays=arrays) if part.kind == SPANS else part


def from_text(text: str) -> dict[str, RunAnswers]:
    """The inverse of :func:`to_text`; ValueError for other text."""
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(base64.b64decode(text, validate=True), MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"no kept answers: {error}") from error
    if not unpacker.eof:
        raise ValueError("no kept answers: too long, or cut off")
    return from_bytes(content)


def to_bytes(answers: Mapping[str, RunAnswers]) -> bytes:
    """The answers on some test splits, by the name of their data, as a safetensors file."""
    from safetensors.numpy import save

    told, arrays = [], dict[str, Array]()
    for data, run in answers.items():
        parts: list[tuple[str | None, KeptAnswers]] = [*run.parts.items()]
        for task, part in parts + ([] if run.frame is None else [(None, run.frame)]):
            entry = {"data": data, "task": task, "kind": part.kind, "classes": list(part.classes)}
            told.append({**entry, "positive": part.positive})
            arrays |= {f"{len(told) - 1}.{name}": np.ascontiguousarray(each) for name, each in part.arrays.items()}
    return save(arrays, {"answers": json.dumps(told, ensure_ascii=False)})


def from_bytes(content: bytes) -> dict[str, RunAnswers]:
    """The inverse of :func:`to_bytes`; ValueError for other content."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        size = int.from_bytes(content[:8], "little")
        told = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["answers"])
        arrays = load(content)
        found: dict[str, RunAnswers] = {}
        for number, each in enumerate(told):
            start = f"{number}."
            own = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
            if each["kind"] == NATS and "words" not in own:
                raise KeyError("the number of masked sub-tokens of each text")
            part = KeptAnswers(each["kind"], own, tuple(each["classes"]), each["positive"])
            before = found.get(each["data"], RunAnswers({}))
            if each["task"] is None:
                found[each["data"]] = RunAnswers(before.parts, part)
            else:
                found[each["data"]] = RunAnswers({**before.parts, each["task"]: part}, before.frame)
    except (KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"no kept answers: {error}") from error
    return found
