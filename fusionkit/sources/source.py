"""A source: named splits of examples, wherever they came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from fusionkit.errors import DataError, UsageError
from fusionkit.plural import counted
from fusionkit.printable import one_line
from fusionkit.sources.conll import read_conll
from fusionkit.sources.conll_layout import column_names, looks_like_conll
from fusionkit.sources.delimited import read_csv, read_tsv, with_numbers
from fusionkit.sources.examples import Examples, first_of
from fusionkit.sources.hub import read_hub, read_saved
from fusionkit.sources.jsonl import read_jsonl
from fusionkit.sources.left_out import notes_on_left_out
from fusionkit.sources.parquet import read_parquet
from fusionkit.sources.spool import spooled
from fusionkit.sources.text import read_text_lines

SPLITS = ("train", "validation", "test")
SPLIT_NAMES = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("validation", "valid", "val", "dev", "development"), "validation"
)
# The table of file formats: suffix → reader, which gives the file's examples in pieces.
Reader = Callable[..., Iterator[pa.RecordBatch]]
FORMATS: dict[str, Reader] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_jsonl,
    ".parquet": read_parquet,
    ".txt": read_conll,
    ".conll": read_conll,
    ".conllu": read_conll,
    ".iob": read_conll,
    ".iob2": read_conll,
    ".bio": read_conll,
}
Result = TypeVar("Result")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # of two letters or more: C:// would be a drive


@dataclass(frozen=True)
class Source:
    """Splits of examples that share their columns.

    Attributes:
        name: for display: the folder's name, the file's without its suffix, or the hub id.
        splits: ``train``, ``validation`` and ``test``, if they exist, in this order; tables become :class:`Examples`.
        notes: what was left out or renamed, for the user to see.
    """

    name: str
    splits: dict[str, Examples]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        of_all = {k: Examples.of(v) if isinstance(v, pa.Table) else v for k, v in self.splits.items()}
        object.__setattr__(self, "splits", of_all)  # the dataclass is frozen


def open_source(
    source: str,
    *,
    config: str | None = None,
    revision: str | None = None,
    lines: bool = False,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> Source:
    """Read a source: a file, a folder of split files, a ``datasets`` folder or a hub id.

    Args:
        lines: a ``.txt`` file holds one text per line, not CoNLL columns.
        columns: names of a CoNLL file's columns (:mod:`fusionkit.sources.conll_layout`).
        limit: use only the first ``limit`` examples of each split; no more of a file is read than they need.

    Raises:
        UsageError: nothing of that name exists, it is an address like ``s3://…``, it holds no split, or columns are
            named that are not CoNLL's.
        DataError: a file's content does not fit its format.
    """
    refuse_address(source)
    notes = list[str]()
    try:
        path = Path(source).expanduser()
        name = one_line((path.resolve().stem if path.is_file() else path.resolve().name) if path.exists() else source)
    except (OSError, RuntimeError) as error:  # a name too long, a folder without permission, an unknown home
        received = f"{source[:60]!r}: {error.strerror if isinstance(error, OSError) else error}"
        raise UsageError("no such source", received=received, remedy="check the path") from error
    saved = (path / "dataset_dict.json").exists() or (path / "state.json").exists()
    _refuse_hub_options(path, config, revision, may_have_configs=not (saved or path.is_file()))
    files = {SPLIT_NAMES.get(path.stem.lower(), "train"): path} if path.is_file() else {}
    if path.is_dir() and not saved and config is None:
        files = _split_files(path)
        notes += notes_on_left_out(path, files.values(), FORMATS) if files else []
    if columns and (saved or not files):
        _refuse_columns(columns, source, "a datasets folder or a hub id" if saved or not path.is_dir() else "a folder")
    if saved:
        tables = read_saved(path)
    elif files:
        readers = {split: _reader_of(file, lines, columns) for split, file in files.items()}
        tables = {split: _read_file(file, readers[split], columns, limit, notes) for split, file in files.items()}
        delimited = {split: tables[split] for split, reader in readers.items() if reader in (read_csv, read_tsv)}
        tables |= with_numbers(delimited)
    elif path.is_dir():
        tables = _folder_as_hub(path, config)
    elif HUB_ID.fullmatch(source) and path.suffix.lower() not in FORMATS:
        tables = read_hub(source, config, revision)
    else:
        raise UsageError(
            f"no such source: {source}",
            expected="a file, a folder of train/validation/test files, a datasets folder or a hub id",
            received="a device or a pipe" if path.exists() else "a path that does not exist",
            remedy="check the path",
        )
    if limit is not None:
        tables = {split: examples.limited(limit) for split, examples in tables.items()}
        name = f"{name} (first {limit:,})"
        notes.append(f"limit: the first {counted(limit, 'example')} of each split")
    return _checked(name, source, tables, notes)


def source_from(options: Mapping[str, Any]) -> Source:
    """The source that options of ``fusionkit encode`` name, by parameter; errors as in :func:`open_source`."""
    return open_source(
        options["source"],
        config=options.get("config"),
        revision=options.get("revision"),
        lines=options.get("task") == "mlm",
        columns=column_names(options.get("columns")),
        limit=options.get("limit"),
    )


def refuse_address(source: str) -> None:
    """Refuse ``s3://…`` and the like, which would be taken for a path that does not exist."""
    if found := ADDRESS.match(source):
        raise UsageError(
            f"{one_line(source, 120)} is an address: sources are read from a local or shared disk",
            expected="the path of a file or folder, or a hub id",
            received=f"an address of {found[0]}",
            remedy="copy the data to a disk first and give its path; a store (--out) may lie on object storage",
        )


def _refuse_columns(columns: Sequence[str], source: object, received: str) -> NoReturn:
    raise UsageError(
        "--columns names the columns of a CoNLL file",
        expected="a file of one word a line",
        received=f"{received}: {source}",
        remedy="leave --columns out; --text, --pair and --tokens choose among named columns",
    )


def _refuse_hub_options(path: Path, config: str | None, revision: str | None, *, may_have_configs: bool) -> None:
    """Refuse a configuration or revision that would be ignored: the user means another source."""
    ignored = {"--config": not may_have_configs, "--revision": path.exists()}
    for option, given in (("--config", config), ("--revision", revision)):
        if given is not None and ignored[option]:
            raise UsageError(
                f"{path} has no {option.removeprefix('--')}s",
                expected=f"{option} with a hub id" + (" or a hub-format folder" if option == "--config" else ""),
                received=f"{option} {given}",
                remedy=f"leave {option} out, or give the hub id",
            )


def _checked(name: str, source: str, tables: dict[str, Examples], notes: list[str]) -> Source:
    splits: dict[str, Examples] = {}
    for found, examples in tables.items():
        split = SPLIT_NAMES.get(found.lower())
        if split is None or split in splits:
            notes.append(f"split {found!r} is left out: only {', '.join(SPLITS)} are used")
        elif examples.num_rows == 0:
            notes.append(f"split {found!r} is left out: it has no rows")
        else:
            splits[split] = _storable(examples, split, notes)
    if not splits:
        raise UsageError(
            f"{source} has no usable split",
            expected="train, validation or test with rows",
            received=", ".join(tables) or "nothing",
            remedy="rename its splits to train, validation or test, and give one of them rows",
        )
    ordered = {split: splits[split] for split in SPLITS if split in splits}
    first = next(iter(ordered))
    for split, examples in ordered.items():
        if missing := sorted(set(ordered[first].column_names) - set(examples.column_names)):
            notes.append(f"{split} lacks column {', '.join(missing)}, which {first} has")
    return Source(name, ordered, notes)


def _storable(examples: Examples, split: str, notes: list[str]) -> Examples:
    """The examples without columns of objects that have no key, which Parquet cannot hold; a note names these."""
    empty = [field.name for field in examples.schema if _has_no_key(field.type)]
    if not empty:
        return examples
    notes.append(f"{split}: column {', '.join(empty)} left out: objects without a key cannot be stored")
    kept = [name for name in examples.column_names if name not in empty]
    return examples.changed(lambda batch, _: batch.select(kept))


def _has_no_key(kind: pa.DataType) -> bool:
    """Whether values of a type are, or hold, objects without a key."""
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return bool(pa.types.is_struct(kind) and not inner) or any(map(_has_no_key, inner))


def _reader_of(path: Path, lines: bool, columns: Sequence[str] | None) -> Reader:
    """The reader for a file's suffix; but ``.tsv`` may hold CoNLL columns, and ``.txt`` one text per line."""
    suffix = path.suffix.lower()
    reader = FORMATS.get(suffix)
    if reader is None:
        raise UsageError(
            f"{path} is of no known format",
            expected="one of " + ", ".join(FORMATS),
            received=path.suffix or "no suffix",
            remedy="rename or convert the file",
        )
    if suffix == ".txt" and lines:
        reader = read_text_lines
    elif suffix == ".tsv" and (columns or _readable(path, looks_like_conll)):
        reader = read_conll
    if columns and reader is not read_conll:
        _refuse_columns(columns, path, "texts, a line each" if lines else f"a {suffix} file")
    return reader


def _readable(path: Path, use: Callable[[Path], Result]) -> Result:
    """The result of ``use`` on a file, with clear errors for a file that is empty or must not be read."""
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty", expected="examples", received="0 bytes", remedy="give a full file")
        return use(path)
    except PermissionError as error:
        raise UsageError(f"{path} may not be read", remedy="change its permissions") from error


def _read_file(
    path: Path, reader: Reader, columns: Sequence[str] | None, limit: int | None, notes: list[str]
) -> Examples:
    own: dict[Reader, dict[str, Any]] = {
        read_conll: {"names": columns, "notes": notes},
        read_text_lines: {"notes": notes},
        read_csv: {"limit": limit},
        read_tsv: {"limit": limit},
    }
    return _readable(path, lambda file: spooled(first_of(reader(file, **own.get(reader, {})), limit), str(file)))


def _split_files(folder: Path) -> dict[str, Path]:
    """The files named after a split, or ending in one (``news-train.csv``), by split."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.suffix.lower() not in FORMATS:
            continue
        split = SPLIT_NAMES.get(re.split(r"[^a-z]", path.stem.lower())[-1])
        if split is None:
            continue
        if split in found:
            raise UsageError(
                f"{folder} has two files for the split {split}",
                expected="one file a split",
                received=f"{found[split].name} and {path.name}",
                remedy="give the file you mean, or move one away",
            )
        found[split] = path
    return found


def _folder_as_hub(folder: Path, config: str | None) -> dict[str, Examples]:
    """A folder laid out as a hub repository: a README with configurations, or data files in folders."""
    if not any(path.suffix.lower() in (*FORMATS, ".arrow", ".md") for path in folder.rglob("*")):
        raise UsageError(
            f"{folder} holds no data",
            expected="train, validation and test files of " + ", ".join(FORMATS),
            received=", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "an empty folder",
            remedy="name the files train.*, validation.* and test.*",
        )
    return read_hub(str(folder), config, None)
