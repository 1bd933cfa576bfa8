"""Another store in the place of an open one: its numbers are not taken for those of the opened store."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fusionkit.errors import StoreError
from fusionkit.fit.executor.context import SweepContext, open_context, opening_of
from fusionkit.io.files import write_json
from fusionkit.store import Split, open_store


def rewrite(store: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((store / "manifest.json").read_text())
    change(manifest)
    write_json(store / "manifest.json", manifest)


def replace(store: Path) -> None:
    """Put a store of other data and the same shape into a store's place."""
    other = shutil.copytree(store, store.with_name("other"))
    rewrite(other, lambda manifest: manifest["identity"]["data"].update(train="other"))
    shutil.rmtree(store)
    other.rename(store)


READERS: dict[str, Callable[[Split], object]] = {
    "taken": lambda split: split.take([7]),
    "loaded": lambda split: split.hidden_states.load(np.arange(30, 40), [0]),
    "in another process": lambda split: pickle.loads(pickle.dumps(split.hidden_states)).gather(np.arange(30, 40)),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_chunk_of_another_store_is_refused_and_one_of_a_repaired_store_is_read(fresh: Any, reader: str) -> None:
    split = open_store(fresh.path)["train"]
    before = split.take([0]).hidden_states
    # A repair on another machine may change checksums.
    rewrite(fresh.path, lambda manifest: manifest["splits"]["train"]["chunks"]["hidden_states"].__setitem__(4, 0))
    np.testing.assert_array_equal(split.hidden_states[:20], fresh.states[:20])
    replace(fresh.path)
    with pytest.raises(StoreError, match="is not the store that was opened") as caught:
        READERS[reader](split)
    assert caught.value.remedy == "open the store again"
    assert torch.equal(split.take([0]).hidden_states, before)
    READERS[reader](open_store(fresh.path)["train"])


def test_a_worker_refuses_another_store_than_its_sweep_began_with(fresh: Any) -> None:
    opening = opening_of(SweepContext(open_store(fresh.path)))
    assert opening is not None
    replace(fresh.path)
    with pytest.raises(StoreError, match="is not the store that the sweep began with"):
        open_context(opening)
