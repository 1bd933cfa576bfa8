"""Stores that are not there yet, told from small ones: some examples of each split, encoded into a folder aside.

of a store = Σ over splits of what the sample has · examples / examples in the sample
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.cost import CostModel, Sizes
from fusionkit.places import Place, sizes_below
from fusionkit.store.layout import states_path
from fusionkit.store.manifest import read_manifest
from fusionkit.study.encode_step import encode_options, open_data
from fusionkit.study.fit_step import SweepFit
from fusionkit.study.folder import StudyFolder
from fusionkit.study.study import SourceStep, SweepStep

SAMPLE = {"train": 64, "validation": 32, "test": 16}
CARVED = 0.1  # of train, where there is no validation


@dataclass(frozen=True)
class SourceStore:
    """The store of a source, or of a sample of it.

    Attributes:
        place: where it is. examples: of each split of the whole source. The others are of the whole store too.
    """

    place: Place
    examples: Mapping[str, int]
    rows: int
    bytes: int
    seconds: float


def complete_store(place: Place) -> SourceStore:
    """A store that is there."""
    splits = read_manifest(place)["splits"]
    examples = {split: int(fields["examples"]) for split, fields in splits.items()}
    rows = sum(fields["rows"] for fields in splits.values())
    return SourceStore(place, examples, rows, sum(sizes_below(place).values()), 0.0)


def sample_store(source: SourceStep, folder: Path, encode: Callable[[Mapping[str, Any], Path], None]) -> SourceStore:
    """Encode some examples of each split of a source, drawn uniformly, and scale up what that took."""
    options, splits = encode_options(source), open_data(source).splits
    few, store = folder / f"{source.name}.examples", folder / f"{source.name}.store"
    few.mkdir()
    for split, examples in splits.items():
        chosen = np.random.default_rng(0).permutation(examples.num_rows)[: SAMPLE[split]]
        pq.write_table(examples.take(np.sort(chosen)), few / f"{split}.parquet")
    encode({**options, "source": str(few), "config": None, "revision": None}, store)
    manifest, sizes = read_manifest(store), {split: examples.num_rows for split, examples in splits.items()}
    sampled = manifest["splits"]

    def whole_and_sampled(name: str) -> tuple[float, float]:
        """The rows or tokens of the whole source, and of the sample."""
        whole = sum(fields[name] * (sizes[split] / fields["examples"]) for split, fields in sampled.items())
        return whole, sum(fields[name] for fields in sampled.values())

    (rows, sampled_rows), (tokens, sampled_tokens) = map(whole_and_sampled, ("rows", "tokens"))
    states, total = (sum(sizes_below(path).values()) for path in (states_path(store), store))
    return SourceStore(
        store,
        sizes,
        rows=round(rows),
        bytes=round(total - states + states * rows / sampled_rows),
        seconds=manifest["provenance"]["seconds"] * tokens / sampled_tokens,
    )


def sample_fit(sweep: SweepStep, work: StudyFolder, stores: Mapping[str, SourceStore]) -> tuple[SweepFit, CostModel]:
    """A sweep over stores of samples, and what its runs cost over the whole ones."""
    # Where runs begin, and which examples they draw, makes no difference in time.
    blocks = tuple(
        {name: value for name, value in block.items() if name not in ("init_from", "draw_from", "init_part")}
        for block in sweep.blocks
    )
    parts = tuple((name, share if share and share.endswith("%") else None) for name, share in sweep.parts)
    plain = dataclasses.replace(sweep, blocks=blocks, begins=(), parts=parts)
    fitting = SweepFit(plain, work, {name: stores[name].place for name in sweep.sources})
    sizes = _sizes(sweep, {name: stores[name].examples for name in sweep.sources})
    return fitting, CostModel(SweepContext(fitting.store), sizes)


def _sizes(sweep: SweepStep, examples: Mapping[str, Mapping[str, int]]) -> Sizes:
    def share(name: str, part: str | None) -> int:
        of_all = examples[name].get("train", 0)
        if part is None:
            return of_all
        return max(round(of_all * float(part[:-1]) / 100), 1) if part.endswith("%") else int(part)

    judges = sweep.judges or (sweep.parts[-1][0],)
    train = sum(share(name, part) for name, part in sweep.parts)
    validation = examples[judges[0]].get("validation")
    if validation is None:
        validation = round(CARVED * examples[judges[0]].get("train", 0))
        train -= min(validation, train - 1)
    return Sizes(train, validation, sum(examples[name].get("test", 0) for name in judges))
