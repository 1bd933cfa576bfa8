"""Hub data sets, hub-format folders and ``save_to_disk`` folders, all through ``datasets``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from fusionkit.errors import DataError, UsageError


def read_hub(name: str, config: str | None, revision: str | None) -> dict[str, pa.Table]:
    """The splits of a hub id or of a folder laid out as a hub repository.

    Raises:
        UsageError: no such data set, configuration or revision, or no way to reach the hub.
    """
    import datasets

    # RuntimeError: a data set that is a Python script, which `datasets` no longer runs.
    failures = (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError)
    try:
        with _quiet_retries():
            return _tables(datasets.load_dataset(name, config, revision=revision))
    except failures as error:
        if config is None and "/" in name and not Path(name).exists():
            # `glue/sst2`: a canonical data set with its configuration behind the slash.
            base, _, short = name.partition("/")
            try:
                with _quiet_retries():
                    return _tables(datasets.load_dataset(base, short, revision=revision))
            except failures:
                pass
        message = " ".join(str(error).split())  # the configurations to choose from are on a later line
        raise UsageError(
            f"cannot load the data set {name!r}",
            expected="a path that exists, or a hub id with --config and --revision where it has them",
            received=f"{type(error).__name__}: {message[:400]}",
            remedy="check the spelling and the network, or give a local file or folder",
        ) from error


@contextlib.contextmanager
def _quiet_retries() -> Iterator[None]:
    """The hub's client logs each attempt to reach it; one error at the end says as much."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def read_saved(path: Path) -> dict[str, pa.Table]:
    """The splits of a folder written by ``datasets``' ``save_to_disk``."""
    import datasets

    try:
        return _tables(datasets.load_from_disk(str(path)))
    except (OSError, ValueError, KeyError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{path} is a damaged datasets folder",
            expected="what save_to_disk wrote",
            received=f"{type(error).__name__}: {error}",
            remedy="save it again",
        ) from error


def _tables(loaded: Any) -> dict[str, pa.Table]:
    splits = {"train": loaded} if hasattr(loaded, "features") else dict(loaded)
    return {name: named_labels(split) for name, split in splits.items()}


def named_labels(split: Any) -> pa.Table:
    """The split's table with each class number replaced by its name; -1, the hub's 'no label', is null."""
    table: pa.Table = split.with_format("arrow")[:]
    for at, (name, feature) in enumerate(split.features.items()):
        inner = getattr(feature, "feature", None)
        if isinstance(feature, list):
            inner = feature[0]
        values = table.column(name).to_pylist() if _names(feature) or _names(inner) else []
        if names := _names(feature):
            column = pa.array([_name(names, v) for v in values], pa.string())
        elif names := _names(inner):
            rows = [[_name(names, v) for v in row] if row is not None else None for row in values]
            column = pa.array(rows, pa.list_(pa.string()))
        else:
            continue
        table = table.set_column(at, name, column)
    return table


def _name(names: list[str], number: int | None) -> str | None:
    return names[number] if number is not None and number >= 0 else None


def _names(feature: Any) -> list[str] | None:
    import datasets

    return list(feature.names) if isinstance(feature, datasets.ClassLabel) else None
