"""The plan: everything about a store that is known before the first forward pass.

Tokenising gives every example its place, so parts are independent of each other. The plan is written to a draft folder,
so a store either has a complete plan or does not exist. Where pairs of texts are stored as two sequences, all arrays
except ``pairs`` have entries for sequences, and the code that works on a plan treats sequences as examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fusionkit.alignment import lay_rows
from fusionkit.encode.batching import Batching
from fusionkit.encode.job import Job
from fusionkit.encode.masking import masked, required_lm
from fusionkit.encode.publish import draft_folder
from fusionkit.encode.repeats import DuplicateFinder
from fusionkit.encode.text_pairs import first_occurrences, paired
from fusionkit.encoder.masked_lm import MaskedLm
from fusionkit.encoder.tokenizer_threads import parallel_tokenizers
from fusionkit.errors import StoppedError, UsageError
from fusionkit.io.files import write_durably, write_json
from fusionkit.io.places import Place, sizes_below
from fusionkit.plural import counted
from fusionkit.ragged import IntArray
from fusionkit.store.layout import (
    FORMAT,
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
from fusionkit.store.manifest import is_two, sequences_of, split_layout
from fusionkit.store.presence import LM_HEAD, PLAN
from fusionkit.store.verify import small_files


def write_plan(job: Job, stop: Callable[[], bool] = lambda: False, check: Callable[[], object] = lambda: None) -> None:
    """Tokenise everything, lay out the arrays and put the planned store in its place.

    Args:
        stop: called between two blocks of examples of a split; True ends the work there. check: called before anything
            at the job's place is replaced; its errors pass through.

    Raises:
        UsageError: the store would be larger than the job's budget; nothing is left behind. StoppedError: ``stop``
            returned True; nothing is left behind.
    """
    encoder, spec, identity = job.encoder, job.spec, job.identity
    batching = Batching.on("cuda" if (job.device or encoder.device.type) == "cuda" else "cpu", encoder.hidden)
    with draft_folder(job.out, check) as draft, parallel_tokenizers():
        plan: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "source": job.source.name,
            "encoder": {
                "name": encoder.name,
                "layers": encoder.layers,
                "parameters": encoder.parameters,
                "sentence_rows": encoder.sentence_rows,
                **({"causal": True} if encoder.causal else {}),
            },
            "rows": identity["rows"],
            "layers": identity["layers"],
            "hidden": encoder.hidden,
            "dtype": spec.dtype,
            "compression": spec.compress,
            "columns": asdict(job.columns),
            "batch_tokens": batching.tokens,
            "batch_overhead": batching.overhead,
            "identity": identity,
            "splits": {},
        }
        if (lm := required_lm(spec, encoder)) is not None:
            write_durably(draft / LM_HEAD, lm.head.content())
        duplicates = DuplicateFinder()
        for split in job.source.splits:
            plan["splits"][split] = _plan_split(job, draft, plan, split, lm, duplicates, stop)
            create_states(draft, split, split_layout(plan, split), tuple(plan["layers"]))
        # Later parts copy rows from the chunks of earlier ones. A remote or compressed chunk would be read whole for a
        # few rows: there duplicates are searched only within each part.
        _write_duplicates(draft, plan, duplicates, whole_store=isinstance(job.out, Path) and spec.compress == "none")
        plan["files"] = small_files(draft)
        refuse_over_budget(draft, plan, job.budget)
        (draft / "parts").mkdir()
        write_json(draft / PLAN, plan)


def _plan_split(
    job: Job,
    store: Path,
    plan: dict[str, Any],
    split: str,
    lm: MaskedLm | None,
    duplicates: DuplicateFinder,
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """Write a split's examples and small arrays; returns its fields of the plan."""
    columns, examples = job.columns, job.source.splits[split]
    two = is_two(plan)
    arrays = {name: Appender(store, split, name) for name in small_arrays(plan["rows"]) if name != "first_alike"}
    if two:
        numbered = paired(examples, columns)
        arrays[PAIRS] = Appender(store, split, PAIRS)
        arrays[PAIRS].append(numbered.sequences)
    for name in ("row_offsets", "token_offsets"):
        arrays[name].append(np.zeros(1, dtype=np.int64))
    counts = dict.fromkeys(("examples", "rows", "tokens", "masked", "cut", *(["sequences"] if two else [])), 0)
    path = examples_path(store, split)
    path.parent.mkdir(exist_ok=True)
    for block in examples.written(path):
        if counts["examples"] and stop():  # not before the first block: there is little to wait for
            raise _stopped(job, split, counts["examples"])
        texts = block.column(columns.tokens or columns.text).to_pylist()
        pairs = block.column(columns.pair).to_pylist() if columns.pair and not two else None
        if two:
            texts = first_occurrences(block, columns, numbered.is_first[counts["examples"] :][: block.num_rows])
            counts["sequences"] += len(texts)
        tokenized = job.encoder.tokenize(texts, pairs, plan["identity"]["max_length"])
        words: IntArray | None = np.array([len(t) for t in texts], dtype=np.int64) if columns.tokens else None
        chosen = None
        if lm is not None:
            tokenized, labels = masked(tokenized, lm, job.spec.mask_seed, job.spec.mask_share)
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
        job.progress.advance(block.num_rows)
    for array in arrays.values():
        array.close()
    height = balanced_rows_per_chunk(
        counts["rows"], counts["tokens"], len(plan["layers"]), plan["hidden"], plan["dtype"]
    )
    return {**counts, "rows_per_chunk": height}


def _stopped(job: Job, split: str, planned: int) -> StoppedError:
    return StoppedError(
        f"stopped before the plan of {job.out} was complete: nothing of it is kept",
        received=f"{planned:,} of {counted(job.source.splits[split].num_rows, 'example')} of {split} planned",
        remedy="run the same command again, with time for the whole plan: it begins anew",
    )


def _write_duplicates(store: Path, plan: dict[str, Any], duplicates: DuplicateFinder, whole_store: bool) -> None:
    """Write ``first_alike`` of all splits; with ``whole_store`` an example of test may equal one of train."""
    first, start = duplicates.first(None if whole_store else _parts_of_examples(store, plan)), 0
    for split, fields in plan["splits"].items():
        array = Appender(store, split, "first_alike", axis="sequences" if is_two(plan) else None)
        array.append(first[start : start + sequences_of(fields)])
        array.close()
        start += sequences_of(fields)


def _parts_of_examples(store: Path, plan: dict[str, Any]) -> IntArray:
    """The part that has each example's first row, numbered over all splits: int64 ``[examples]``."""
    found, parts = [], 0
    for split in plan["splits"]:
        layout = split_layout(plan, split)
        found.append(read_small(store, split, "row_offsets")[:-1] // layout.rows_per_chunk + parts)
        parts += layout.chunks + 1  # an example without rows may come after the last part
    return np.concatenate(found)


def refuse_over_budget(store: Place, plan: dict[str, Any], budget: int | None) -> None:
    """Raise UsageError if the finished store of a plan would be larger than ``budget`` bytes."""
    if budget is None:
        return
    layouts, names = [split_layout(plan, split) for split in plan["splits"]], plan["files"]
    states = sum(layout.chunks * layout.chunk_bytes for layout in layouts)
    if isinstance(store, Path):  # other processes may be writing parts there: only these files are looked at
        size = states + sum(path.stat().st_size for name in names if (path := store / name).is_file())
    else:
        sizes = sizes_below(store)
        size = states + sum(sizes.get(name, 0) for name in names)
    if size > budget:
        raise UsageError(
            "the store would be larger than --budget",
            expected=f"up to {budget / 1e6:,.1f} MB",
            received=f"{size / 1e6:,.1f} MB",
            remedy="choose fewer --layers or cheaper --rows (`fusionkit estimate` shows what each saves)",
        )


def _lost_words(token_offsets: IntArray, word_index: Any, words: IntArray | None) -> int:
    """The number of words without a sub-token, for any kind of rows: a tagger cannot see them."""
    if words is None:
        return 0
    return int((~lay_rows("words", token_offsets, word_index, words).mask).sum())
