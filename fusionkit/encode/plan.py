"""The plan: everything about a store that is known before the first forward pass.

Tokenising gives every example its place, so parts need not know of each other. The plan is written to a draft folder,
so a store either has a whole plan or does not exist. Where pairs of texts are stored as two sequences, all arrays but
``pairs`` are of sequences; whatever works on a plan treats these as its examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fusionkit.alignment import lay_rows
from fusionkit.encode.duplicates import DuplicateFinder
from fusionkit.encode.masking import Masking, masked, masking_of
from fusionkit.encode.publish import draft_folder
from fusionkit.encode.text_pairs import choose_pair_as, first_occurrences, paired
from fusionkit.encoder import Encoder
from fusionkit.errors import UsageError
from fusionkit.files import write_durably, write_json
from fusionkit.places import Place
from fusionkit.ragged import IntArray
from fusionkit.sources import Columns, Examples, Source
from fusionkit.specs import MASKED, EncodeSpec, canonical_json, parse_layers
from fusionkit.store.layout import (
    FORMAT,
    LM_HEAD,
    NOT_MASKED,
    PAIRS,
    VERSION,
    Appender,
    balanced_rows_per_chunk,
    create_states,
    examples_path,
    read_small,
    small_arrays,
)
from fusionkit.store.lm_head_file import lm_head_facts
from fusionkit.store.manifest import PLAN, is_two, sequences_of, split_layout
from fusionkit.store.verify import small_files

# Padded sub-tokens a batch. One CPU core's caches hold a batch of about a thousand; a GPU wants many more.
BATCH_TOKENS = {"cpu": 1024, "cuda": 32768}


def choose_rows(asked: str | None, columns: Columns, encoder: Encoder, task: str | None = None) -> str:
    """The kind of rows: as asked, by the task, else by what the columns can teach.

    Tags alone need words; tags and labels both can be learned from tokens; labels alone need one vector.
    """
    if task == "mlm":
        return MASKED
    if asked in ("words", "words-mean") and columns.tokens is None:
        raise UsageError(
            f"rows of {asked} need words",
            expected="a column with lists of words (--tokens)",
            received=f"texts in column {columns.text!r}",
            remedy="choose --rows tokens, cls or mean",
        )
    if asked is not None:
        return asked
    if columns.tags:
        return "tokens" if columns.labels else "words"
    return encoder.sentence_rows


def identity_of(source: Source, columns: Columns, encoder: Encoder, spec: EncodeSpec, rows: str) -> dict[str, Any]:
    """The fields that two stores of the same content share: never the device, batch size, worker count or a path."""
    masking = masking_of(spec, encoder)
    mlm = {}
    if masking is not None and encoder.masked_lm is not None:
        facts = {"mask_seed": masking.seed, "mask_share": float(masking.share)}
        mlm = {"mlm": {**facts, "lm_head": lm_head_facts(encoder.masked_lm.head)}}
    # Stores from before there was a choice are of one sequence a pair, and keep their names.
    pairs = {"pair_as": "two"} if choose_pair_as(spec.pair_as, columns, encoder) == "two" else {}
    return {
        "encoder": encoder.identity,
        "rows": rows,
        "layers": list(parse_layers(spec.layers, encoder.layers)),
        "dtype": spec.dtype,
        "compute_dtype": spec.compute_dtype,
        "max_length": _max_length(spec, encoder),
        "columns": {"text": columns.text, "pair": columns.pair, "tokens": columns.tokens},
        **pairs,
        "data": {split: fingerprint(examples) for split, examples in source.splits.items()},
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")},
        **mlm,
    }


def fingerprint(examples: Examples) -> str:
    """SHA-256 over a split's columns and values, whatever file they came from."""
    digest = hashlib.sha256(canonical_json(examples.column_names).encode())
    for batch in examples.batches():
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            digest.update(canonical_json([str(v) if not _plain(v) else v for v in row]).encode())
    return digest.hexdigest()


def write_plan(
    out: Place,
    source: Source,
    columns: Columns,
    encoder: Encoder,
    spec: EncodeSpec,
    identity: dict[str, Any],
    on_examples: Callable[[int], None] = lambda _: None,
    budget: int | None = None,
    device: str | None = None,
) -> None:
    """Tokenise everything, lay out the arrays and put the planned store in its place.

    Args:
        on_examples: called with the number of examples each step has tokenised.
        budget: bytes the finished store may have.
        device: ``cpu`` or ``cuda``, what the batches are for; None is the encoder's own.

    Raises:
        UsageError: the store would be larger than the budget; nothing is left behind.
    """
    with draft_folder(out) as draft:
        plan: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "source": source.name,
            "encoder": {
                "name": encoder.name,
                "layers": encoder.layers,
                "parameters": encoder.parameters,
                "sentence_rows": encoder.sentence_rows,
            },
            "rows": identity["rows"],
            "layers": identity["layers"],
            "hidden": encoder.hidden,
            "dtype": spec.dtype,
            "compression": spec.compress,
            "columns": asdict(columns),
            "batch_tokens": BATCH_TOKENS["cuda" if (device or encoder.device.type) == "cuda" else "cpu"],
            "identity": identity,
            "splits": {},
        }
        duplicates, masking = DuplicateFinder(), masking_of(spec, encoder)
        if encoder.masked_lm is not None and masking is not None:
            write_durably(draft / LM_HEAD, encoder.masked_lm.head.content())
        for split, examples in source.splits.items():
            fields = _plan_split(draft, split, examples, columns, encoder, plan, duplicates, masking, on_examples)
            plan["splits"][split] = fields
            create_states(draft, split, split_layout(plan, split), tuple(plan["layers"]))
            path = examples_path(draft, split)
            path.parent.mkdir(exist_ok=True)
            examples.write_parquet(path)
        # Later parts copy rows from the chunks of earlier ones. From a remote or compressed chunk a few rows would cost
        # the whole chunk: there duplicates are looked for within each part alone.
        _write_duplicates(draft, plan, duplicates, whole_store=isinstance(out, Path) and spec.compress == "none")
        _refuse_over_budget(draft, plan, budget)
        (draft / "parts").mkdir()
        plan["files"] = small_files(draft)
        write_json(draft / PLAN, plan)


def _plan_split(
    store: Path,
    split: str,
    examples: Examples,
    columns: Columns,
    encoder: Encoder,
    plan: dict[str, Any],
    duplicates: DuplicateFinder,
    masking: Masking | None,
    on_examples: Callable[[int], None],
) -> dict[str, Any]:
    two = is_two(plan)
    arrays = {name: Appender(store, split, name) for name in small_arrays(plan["rows"]) if name != "first_alike"}
    if two:
        pairs_of, is_first = paired(examples, columns)
        arrays[PAIRS] = Appender(store, split, PAIRS)
        arrays[PAIRS].append(pairs_of)
    for name in ("row_offsets", "token_offsets"):
        arrays[name].append(np.zeros(1, dtype=np.int64))
    counts = dict.fromkeys(("examples", "rows", "tokens", "masked", "cut", *(["sequences"] if two else [])), 0)
    for block in examples.batches():
        texts = block.column(columns.tokens or columns.text).to_pylist()
        pairs = block.column(columns.pair).to_pylist() if columns.pair and not two else None
        if two:
            texts = first_occurrences(
                block, columns, is_first[counts["examples"] : counts["examples"] + block.num_rows]
            )
            counts["sequences"] += len(texts)
        tokenized = encoder.tokenize(texts, pairs, plan["identity"]["max_length"])
        words: IntArray | None = np.array([len(t) for t in texts], dtype=np.int64) if columns.tokens else None
        chosen = None
        if masking is not None:
            tokenized, labels = masked(tokenized, masking)
            arrays["mlm_labels"].append(labels)
            chosen = labels != NOT_MASKED
        rows = lay_rows(plan["rows"], tokenized.token_offsets, tokenized.word_index, words, chosen)
        arrays["row_offsets"].append(rows.row_offsets[1:] + counts["rows"])
        arrays["row_mask"].append(rows.mask)
        arrays["token_offsets"].append(tokenized.token_offsets[1:] + counts["tokens"])
        arrays["token_ids"].append(tokenized.token_ids)
        arrays["word_index"].append(tokenized.word_index)
        arrays["segments"].append(tokenized.segments)
        duplicates.add(tokenized, rows.row_offsets, chosen)
        counts["examples"] += block.num_rows
        counts["rows"] += len(rows.mask)
        counts["tokens"] += len(tokenized.token_ids)
        counts["masked"] += _lost_words(tokenized.token_offsets, tokenized.word_index, words)
        counts["cut"] += int(tokenized.cut.sum())
        on_examples(block.num_rows)
    for array in arrays.values():
        array.close()
    height = balanced_rows_per_chunk(
        counts["rows"], counts["tokens"], len(plan["layers"]), plan["hidden"], plan["dtype"]
    )
    return {**counts, "rows_per_chunk": height}


def _write_duplicates(store: Path, plan: dict[str, Any], duplicates: DuplicateFinder, whole_store: bool) -> None:
    """Write ``first_alike`` of all splits; an example of test may be equal to one of train."""
    first, start = duplicates.first(None if whole_store else _parts_of_examples(store, plan)), 0
    for split, fields in plan["splits"].items():
        array = Appender(store, split, "first_alike", axis="sequences" if is_two(plan) else None)
        array.append(first[start : start + sequences_of(fields)])
        array.close()
        start += sequences_of(fields)


def _parts_of_examples(store: Path, plan: dict[str, Any]) -> IntArray:
    """For each example the part with its first row, the parts numbered through the splits: int64 ``[examples]``."""
    found, parts = [], 0
    for split in plan["splits"]:
        layout = split_layout(plan, split)
        found.append(read_small(store, split, "row_offsets")[:-1] // layout.rows_per_chunk + parts)
        parts += layout.chunks + 1  # an example without rows may stand behind the last
    return np.concatenate(found)


def _refuse_over_budget(draft: Path, plan: dict[str, Any], budget: int | None) -> None:
    states = sum(
        layout.chunks * layout.chunk_bytes for layout in (split_layout(plan, split) for split in plan["splits"])
    )
    size = states + sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
    if budget is not None and size > budget:
        raise UsageError(
            "the store would be larger than --budget",
            expected=f"up to {budget / 1e9:,.2f} GB",
            received=f"{size / 1e9:,.2f} GB",
            remedy="choose fewer --layers or cheaper --rows (`fusionkit estimate` shows what each saves)",
        )


def _lost_words(token_offsets: IntArray, word_index: Any, words: IntArray | None) -> int:
    """Words with no sub-token at all, whatever the rows are: a tagger cannot see them."""
    if words is None:
        return 0
    return int((~lay_rows("words", token_offsets, word_index, words).mask).sum())


def _max_length(spec: EncodeSpec, encoder: Encoder) -> int:
    if spec.max_length is None:
        return encoder.max_length
    if spec.max_length > encoder.max_length:
        raise UsageError(
            f"encoder {encoder.name!r} cannot take that length",
            expected=f"--max-length up to {encoder.max_length}",
            received=str(spec.max_length),
        )
    return spec.max_length


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list))
