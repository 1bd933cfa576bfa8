"""Hub data sets, hub-format folders and ``save_to_disk`` folders, all through ``datasets``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from fusionkit.errors import DataError, UsageError, first_line
from fusionkit.sources.examples import PIECE_EXAMPLES, Examples, without_views
from fusionkit.sources.spool import spooled


def read_hub(name: str, config: str | None, revision: str | None) -> dict[str, Examples]:
    """The splits of a hub id or of a folder laid out as a hub repository.

    Raises:
        UsageError: no such data set, configuration or revision, or no way to reach the hub.
    """
    import datasets

    # RuntimeError: a data set that is a Python script, which `datasets` no longer runs.
    failures = (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError)

    def load(place: str, chosen: str | None) -> dict[str, Examples]:
        with _quiet_retries():
            try:
                loaded = datasets.load_dataset(place, chosen, revision=revision)
            except (yaml.YAMLError, TypeError, AttributeError) as error:  # `datasets` does not check the card's header
                raise ValueError(
                    f"the header of its README.md may be broken: {first_line(error, kind=True)}"
                ) from error
            return _splits(loaded, name)

    try:
        return load(name, config)
    except failures as error:
        if config is None and "/" in name and not Path(name).exists():
            # `glue/sst2`: a canonical data set with its configuration behind the slash.
            base, _, short = name.partition("/")
            with contextlib.suppress(*failures):
                return load(base, short)
        message = " ".join(str(error).split())  # the configurations to choose from are on a later line
        raise UsageError(
            f"cannot load the data set {name!r}",
            expected="a path that exists, or a hub id with --config and --revision where it has them",
            received=f"{type(error).__name__}: {message[:400]}",
            remedy="check the spelling and the network, or give a local file or folder",
        ) from error


@contextlib.contextmanager
def _quiet_retries() -> Iterator[None]:
    """Silence the log of the hub's client, which reports each attempt; the error at the end says enough."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def read_saved(path: Path) -> dict[str, Examples]:
    """The splits of a folder written by ``datasets``' ``save_to_disk``."""
    import datasets

    try:
        return _splits(datasets.load_from_disk(str(path)), str(path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{path} is a damaged datasets folder",
            expected="what save_to_disk wrote",
            received=f"{type(error).__name__}: {error}",
            remedy="save it again",
        ) from error


def _splits(loaded: Any, name: str) -> dict[str, Examples]:
    splits = {"train": loaded} if hasattr(loaded, "features") else dict(loaded)
    return {
        split: examples_of(data, f"{name}, {split}").changed(partial(with_class_names, data.features))
        for split, data in splits.items()
    }


def examples_of(data: Any, name: str) -> Examples:
    """The rows, read from the files of ``datasets`` where these hold the same rows, else copied piece by piece.

    Its memory map is not used: the pages that were read through a map count as memory of the process.
    """
    files = tuple(Path(each["filename"]) for each in data.cache_files)
    schema = data.data.schema
    mapped = getattr(data, "_indices", data) is None  # else a selection, or in another order
    if mapped and all(_stream_schema(file).equals(schema) for file in files):
        stored = Examples(schema, data.num_rows, partial(_read_streams, files, schema))
        # The data may be only a part of the files, or have no files: then the numbers of rows differ.
        if sum(batch.num_rows for batch in stored.read()) == data.num_rows:
            return stored
    if not data.num_rows:
        return Examples.of(schema.empty_table())
    return spooled(map(one_batch, data.with_format("arrow").iter(PIECE_EXAMPLES)), name)


def _stream_schema(file: Path) -> pa.Schema:
    with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as stream:
        return stream.schema


def _read_streams(files: tuple[Path, ...], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for file in files:
        try:
            with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as stream:
                for batch in stream:
                    yield batch.replace_schema_metadata(schema.metadata)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(
                f"{file} can no longer be read",
                expected="the file that `datasets` keeps the examples in",
                received=first_line(error),
                remedy="leave it in place until the work is done, and run the same command again",
            ) from error


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """All rows of a small table as one batch; the table must not be empty."""
    return table.combine_chunks().to_batches()[0]


def with_class_names(features: Any, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
    """The batch with each class number replaced by its name; -1, the hub's 'no label', is null."""
    for at, (name, feature) in enumerate(features.items()):
        own = _names(feature)
        of_entries = _names(feature[0] if isinstance(feature, list) else getattr(feature, "feature", None))
        if own:
            column = pa.array([_name(own, v) for v in batch.column(name).to_pylist()], pa.string())
        elif of_entries:
            lists = batch.column(name).to_pylist()
            rows = [[_name(of_entries, v) for v in row] if row is not None else None for row in lists]
            column = pa.array(rows, pa.list_(pa.string()))
        else:
            continue
        batch = batch.set_column(at, name, column)
    return without_views(batch)


def _name(names: list[str], number: int | None) -> str | None:
    if number is not None and number >= len(names):
        raise DataError(
            f"the class number {number} has no name",
            expected=f"one of 0 to {len(names) - 1}, which the data set names, or -1 for none",
            received=str(number),
            remedy="mend the column, or its names",
        )
    return names[number] if number is not None and number >= 0 else None


def _names(feature: Any) -> list[str] | None:
    import datasets

    return list(feature.names) if isinstance(feature, datasets.ClassLabel) else None
