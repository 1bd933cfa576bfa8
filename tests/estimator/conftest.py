"""Stores of German travel-desk sentences without a validation split, and arrays with something to learn."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fusionkit.bundled import travel_desk
from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.ragged import Ragged, offsets_of
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import Store, open_store


@pytest.fixture(scope="session")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Store]:
    """40 sentences of ten intents, and 30 as test, with one kind of rows; encoded once per kind."""
    made: dict[str, Store] = {}
    source = tmp_path_factory.mktemp("source") / "desk"
    source.mkdir()
    for split in ("train", "test"):
        lines = (travel_desk("de") / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        (source / f"{split}.jsonl").write_text("\n".join(lines[:40]), encoding="utf-8")

    def get(rows: str) -> Store:
        if rows not in made:
            opened, out = open_source(str(source)), tmp_path_factory.mktemp("stores") / rows
            encoder = load_encoder("minilm", device="cpu", words=True)
            encode(opened, guess_columns(opened), out, EncodeSpec(rows=rows), encoder)
            made[rows] = open_store(Path(out))
        return made[rows]

    return get


Toy = tuple[Ragged, NDArray[np.str_], list[list[str]]]


@pytest.fixture
def toy() -> Toy:
    """60 examples of 1 to 5 rows, 3 layers, 6 wide, with one label per example and one tag per row; row 4 has no state.

    A row's tag is the sign of one number of its layer 1; an example's label is the tag of its first row.
    """
    rng = np.random.default_rng(0)
    offsets = offsets_of(rng.integers(1, 6, 60))
    states = rng.normal(size=(int(offsets[-1]), 3, 6)).astype(np.float32)
    states[:, 1, 2] += 4 * np.sign(states[:, 1, 2])
    mask = np.ones(len(states), dtype=bool)
    mask[4], states[4] = False, 0
    names = np.where(states[:, 1, 2] > 0, "up", "down")
    tags = [names[a:b].tolist() for a, b in pairwise(offsets)]
    return Ragged(torch.from_numpy(states), offsets, mask), names[offsets[:-1]], tags


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Use one thread, so that sums have the same order on every machine."""
    torch.set_num_threads(1)
