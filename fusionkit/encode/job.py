"""An encoding job: what is encoded and where, the store's identity, the receiver of progress, and the report."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from fusionkit.encode.batching import VERSION as BATCHING
from fusionkit.encode.masking import required_lm
from fusionkit.encode.publish import refuse_foreign, resolved
from fusionkit.encode.text_pairs import choose_pair_as
from fusionkit.encoder import Encoder
from fusionkit.errors import UsageError, first_has_seen_nothing
from fusionkit.io.files import disk_errors
from fusionkit.io.places import Place, place_errors
from fusionkit.sources import Columns, Examples, Source, prepared
from fusionkit.specs import MASKED, OWN, EncodeSpec, canonical_json, parse_layers
from fusionkit.store.lm_head_file import lm_head_facts

PLAIN = (str, int, float, bool, list, type(None))  # types that JSON has; other values are hashed as text


class EncodeProgress(Protocol):
    """Receives an encode's progress. The command line's bars are one; by default nothing is shown."""

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        """A stage of ``total`` units begins, of which ``done`` are finished already."""
        return

    def advance(self, count: int) -> None:
        """More units of the current stage are done."""
        return

    def say(self, line: str) -> None:
        """Show the user a message."""
        return


class NoProgress(EncodeProgress):
    """Shows nothing."""


@dataclass(frozen=True)
class EncodeReport:
    """What an encode did.

    Attributes:
        outcome: ``encoded``, ``resumed``, ``complete`` (nothing was left to do) or ``share`` (parts of other shares
            are missing).
        seconds, tokens: of this call. manifest: the finished store's; the plan where the outcome is ``share``.
    """

    outcome: str
    seconds: float
    tokens: int
    manifest: dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What is encoded, and where.

    Attributes:
        source: checked and prepared for its columns. identity: of the store. Others: see
            :func:`fusionkit.encode.encode`.
    """

    source: Source
    columns: Columns
    out: Place
    spec: EncodeSpec
    encoder: Encoder
    identity: dict[str, Any]
    progress: EncodeProgress
    budget: int | None
    device: str | None


def make_job(
    source: Source,
    columns: Columns,
    out: Place,
    spec: EncodeSpec,
    encoder: Encoder,
    progress: EncodeProgress | None = None,
    budget: int | None = None,
    device: str | None = None,
) -> Job:
    """A job with its identity; reports the source's notes and creates the parent folder of ``out``.

    Raises:
        UsageError: ``out`` holds other files.
    """
    progress = progress or NoProgress()
    out = resolved(out)
    source, notes = prepared(source, columns)
    for note in [*source.notes, *notes]:
        progress.say(note)
    identity = _identity_of(source, columns, encoder, spec)
    with place_errors(out):
        refuse_foreign(out)
    if isinstance(out, Path):
        with disk_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
    return Job(source, columns, out, spec, encoder, identity, progress, budget, device)


def _choose_rows(spec: EncodeSpec, columns: Columns, encoder: Encoder) -> str:
    """The kind of rows: as asked, by the task, else by the columns.

    Tags alone need words; tags and labels together can be learned from tokens; labels alone need one vector.
    """
    asked = spec.rows
    if spec.task == "mlm":
        return MASKED
    if asked in ("words", "words-mean") and columns.tokens is None:
        raise UsageError(
            f"rows of {asked} need words",
            expected="a column with lists of words (--tokens)",
            received=f"texts in column {columns.text!r}",
            remedy="choose --rows tokens, cls or mean",
        )
    if asked == "cls" and encoder.causal:
        raise first_has_seen_nothing(f"encoder {encoder.name!r}", "--rows")
    if asked is not None:
        return asked
    if columns.tags:
        return "tokens" if columns.labels else "words"
    return encoder.sentence_rows


def _identity_of(source: Source, columns: Columns, encoder: Encoder, spec: EncodeSpec) -> dict[str, Any]:
    """The fields that are equal for stores of the same content: no device, batch size, worker count or path."""
    rows, mlm = _choose_rows(spec, columns, encoder), {}
    if (lm := required_lm(spec, encoder)) is not None:
        facts = {"mask_seed": spec.mask_seed, "mask_share": float(spec.mask_share)}
        made = {} if lm.made_of == OWN else {"made_of": lm.made_of}
        mlm = {"mlm": {**facts, "lm_head": {**lm_head_facts(lm.head), **made}}}
    # "one" is not recorded: stores made before there was a choice have one sequence per pair and keep their digests.
    pairs = {"pair_as": "two"} if choose_pair_as(spec.pair_as, columns, encoder) == "two" else {}
    limit = {} if spec.limit is None else {"limit": spec.limit}
    return {
        "encoder": encoder.identity,
        "rows": rows,
        "layers": list(parse_layers(spec.layers, encoder.layers)),
        "dtype": spec.dtype,
        "compute_dtype": spec.compute_dtype,
        "batching": BATCHING,
        "max_length": _max_length(spec, encoder),
        "columns": {"text": columns.text, "pair": columns.pair, "tokens": columns.tokens},
        **pairs,
        **limit,
        "data": {split: fingerprint(examples) for split, examples in source.splits.items()},
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")},
        **mlm,
    }


def fingerprint(examples: Examples) -> str:
    """SHA-256 over a split's columns and values, independent of the file format."""
    digest = hashlib.sha256(canonical_json(examples.column_names).encode())
    for batch in examples.batches():
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            plain = [value if isinstance(value, PLAIN) else str(value) for value in row]
            digest.update(canonical_json(plain, default=str).encode())  # a list may hold dates or bytes
    return digest.hexdigest()


def _max_length(spec: EncodeSpec, encoder: Encoder) -> int:
    if spec.max_length is None:
        return encoder.max_length
    if spec.max_length > encoder.max_length:
        raise UsageError(
            f"encoder {encoder.name!r} cannot take that length",
            expected=f"--max-length up to {encoder.max_length}",
            received=f"--max-length {spec.max_length}",
            remedy="choose a smaller --max-length, or leave it out",
        )
    return spec.max_length
