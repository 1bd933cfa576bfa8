"""SIGTERM in the middle of reading a store: a stop, and no damage."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from upath import UPath

from fusionkit.cli.console import sigterm_raises
from fusionkit.errors import StoppedError
from fusionkit.fit.executor import context
from fusionkit.fit.executor.context import SweepContext, opening_of
from fusionkit.store import layout, manifest, open_store, reader


def sigterm(*_: Any, **__: Any) -> None:
    signal.raise_signal(signal.SIGTERM)


def small_array(path: Path) -> object:
    return layout.read_small(path, "train", "row_offsets")


def metadata(path: Path) -> object:
    return manifest.disagreement(path, manifest.read_manifest(path), "train")


def examples(path: Path) -> object:
    return open_store(path)["train"].examples


def opened_again(path: Path) -> object:
    return opening_of(SweepContext(open_store(path)))


@pytest.mark.parametrize(
    ("module", "name", "read"),
    [
        (layout, "open_array", small_array), (manifest, "open_array", metadata), (reader, "read_bytes", examples),
        (context, "open_planned", opened_again),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_a_stop_is_told_as_a_stop_wherever_it_comes(
    fresh: Any, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, read: Callable[[Path], object]
) -> None:
    if read is examples:  # of a store elsewhere: a local file is read by Arrow
        monkeypatch.setattr(reader, "examples_path", lambda *_: UPath("memory://known/train.parquet"))
    monkeypatch.setattr(module, name, sigterm)
    with sigterm_raises(), pytest.raises(StoppedError):
        read(fresh.path)
