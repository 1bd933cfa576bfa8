"""Helpers of all commands: output, progress bars, tables, errors.

Results go to standard output, everything else to standard error, so that output can be piped.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining
from rich.table import Table
from rich.text import Text

from fusionkit.cli.options.completion import folders
from fusionkit.errors import StoppedError, UsageError
from fusionkit.io.places import Place, is_there, place_of
from fusionkit.lazy import uncollected
from fusionkit.plural import counted
from fusionkit.printable import json_escaped, one_line, printable

if TYPE_CHECKING:
    from fusionkit.dataset.share import Share
    from fusionkit.store import Store

PIPE_WIDTH = 200
PLAIN_SECONDS = 10.0  # between two plain lines of progress
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


class _Escaping(Console):
    """A console on which no text can control the terminal: Rich renders every text with this method."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(printable(text), **how)


PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False}


def out() -> Console:
    """Standard output. Brackets and words like ``:fire:`` in data stay as they are. A pipe gets a fixed width."""
    return _Escaping(**PLAIN, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def log() -> Console:
    """Standard error. It is interactive, with lines that are drawn again, on a terminal that can move its cursor.
    FORCE_COLOR makes Rich take a file for a terminal: it gets colours, and plain lines.
    """
    if sys.stderr.isatty():
        return _Escaping(stderr=True, **PLAIN)
    return _Escaping(stderr=True, **PLAIN, width=PIPE_WIDTH, force_interactive=False)


def say_at_once(line: str) -> None:
    """Print a line if standard error is a terminal, before imports that take a second or two."""
    if sys.stderr.isatty():
        log().print(line)


def print_json(value: Any, indent: int | None = 1) -> None:
    """Print JSON, with the control characters escaped that JSON allows in a text; in ASCII where standard output is not
    in UTF-8.
    """
    ascii_only = (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"
    click.echo(json_escaped(json.dumps(value, indent=indent, ensure_ascii=ascii_only)))


def table(title: str | None, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> Table:
    """A table from ``(header, justification)`` columns and rows of text."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    rows = list(rows)
    for (header, justify), width in zip(columns, _widths(columns, rows), strict=True):
        # Folded, not cut: a long name may be the only difference between rows. A number that is cut must show it.
        cut = "ellipsis" if justify == "right" else "fold"
        made.add_column(header, justify=justify, no_wrap=justify == "right", overflow=cut, width=width)  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*row)
    return made


def _widths(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> list[int | None]:
    """Widths for columns that are too wide together, without breaking a word; None for all if they fit or cannot fit.

    Rich itself would narrow the widest columns and break words.
    """
    console = out()
    unbounded = console.options.update(max_width=100_000)
    cells = [[header, *cells] for (header, _), *cells in zip(columns, *rows, strict=True)]
    measured = [[console.measure(cell, options=unbounded) for cell in column] for column in cells]
    widths = [max(cell.maximum for cell in column) for column in measured]
    least = [
        width if justify == "right" else max(cell.minimum for cell in column)
        for width, column, (_, justify) in zip(widths, measured, columns, strict=True)
    ]
    room = console.width - 2 * (len(columns) - 1)
    if sum(widths) <= room or sum(least) > room:
        return [None] * len(columns)
    while sum(widths) > room:
        _, widest = max((width, place) for place, width in enumerate(widths) if width > least[place])
        widths[widest] -= 1
    return [*widths]


def count_table(what: str, counts: Mapping[str, Mapping[str, int]], fields: Mapping[str, str]) -> Table:
    """A table of counts, one row per ``what``; ``fields`` are the headers, by count."""
    rows = [[name, *(f"{found[field]:,}" for field in fields)] for name, found in counts.items()]
    return table(None, [(what, "left"), *((header, "right") for header in fields.values())], rows)


class PlaceType(click.ParamType[Place]):
    """A folder, or an address on object storage."""

    name = "place"
    shell_complete = staticmethod(folders)  # type: ignore[assignment]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        return place_of(value)


class FolderType(PlaceType):
    """A local folder or file, for everything but stores."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        place = place_of(value)
        if not isinstance(place, Path):  # as a path it would be a folder called "s3:"
            raise UsageError(
                "runs, reports and exports are kept on a local disk",
                expected="a local path",
                received=value,
                remedy="choose a local path; only stores may be on object storage",
            )
        return place


PLACE, FOLDER = PlaceType(), FolderType()


def runs_at(path: Place) -> Path | None:
    """The path, if it is a folder of runs; None if it is a store; UsageError for anything else."""
    from fusionkit.runs.folder import is_begun
    from fusionkit.store import is_store

    if is_store(path):
        return None
    if not (isinstance(path, Path) and path.is_dir() and is_begun(path)):
        raise UsageError(
            f"{path} is neither a store nor a folder of runs",
            expected="what `fusionkit encode --out` or `fusionkit fit --out` writes",
            received="something else" if is_there(path) else "a path that does not exist",
            remedy="check the path",
        )
    return path


def given_store(path: Place, planned: bool = False) -> Store:
    """The store that the user named; UsageError if it is not a store, StoreError if it is unfinished or damaged. With
    ``planned`` it may be only planned.
    """
    from fusionkit.store import is_store

    if not is_store(path):
        raise UsageError(
            f"{path} is no store",
            expected="what `fusionkit encode --out` wrote",
            received="something else" if is_there(path) else "a path that does not exist",
            remedy="make one with `fusionkit encode SOURCE --out STORE`, or check the path",
        )
    with uncollected(for_good=True):
        from fusionkit.store import open_planned, open_store  # loads torch and zarr

    return (open_planned if planned else open_store)(path)


def given_share(text: str) -> Share:
    """The store, which may be only planned, and the share of it that the user named: ``de.store``, ``de.store:5%``,
    ``s3://bucket/de.store:200``.

    An existing store whose name ends like a share (``de.store:5``) is read as that whole store. Errors as in
    :func:`given_store`.
    """
    from fusionkit.dataset.share import WRITTEN, Share, parse_share
    from fusionkit.store import is_store

    before, colon, behind = text.rpartition(":")
    shared = colon and before and "/" not in behind and not is_store(place_of(text))
    if shared and (WRITTEN.fullmatch(behind) or is_store(place_of(before))):
        return Share(given_store(place_of(before), planned=True), parse_share(behind))
    return Share(given_store(place_of(text), planned=True))


@contextmanager
def _on_sigterm(do: Callable[..., None]) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, do)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def sigterm_flag() -> Iterator[Callable[[], bool]]:
    """Record a SIGTERM; yields a function that says whether one came, to call between two pieces of work."""
    asked = threading.Event()
    with _on_sigterm(lambda *_: asked.set()):
        yield asked.is_set


def sigterm_raises() -> AbstractContextManager[None]:
    """Let SIGTERM end the work at once, as Ctrl-C does: what is finished is on the disk."""

    def stop(*_: object) -> None:
        raise StoppedError("stopped by SIGTERM; finished runs are kept", remedy="run the same command to go on")

    return _on_sigterm(stop)


def clock(seconds: float) -> str:
    """``0:07``, ``2:23``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ProgressBars:
    """Progress for one command: a bar on a terminal, a plain line now and then otherwise."""

    def __init__(self) -> None:
        self._console = log()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}", markup=False),
            TimeElapsedColumn(),
            Remaining(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._console,
            disable=not self._console.is_interactive,  # it still counts
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        """A stage of ``total`` units begins; ``done`` of them are finished already."""
        self._task = self._bar.add_task(name, total=total, completed=done, unit=unit, note="")
        self._last, self._left = time.monotonic(), total - done
        if self._bar.disable:
            self._console.print(
                f"{name}: {counted(total, unit.removesuffix('s'))}" + (f", {done:,} done already" if done else "")
            )

    def advance(self, count: int) -> None:
        count = min(count, self._left)  # an example that lies in two parts counts in both
        self._left -= count
        self._bar.advance(self._task, count)
        if self._bar.disable and time.monotonic() - self._last > PLAIN_SECONDS:
            self._last = time.monotonic()
            task = self._bar.tasks[-1]
            done, note = f"{task.completed:,.0f} of {task.total:,.0f}", task.fields["note"]
            self._console.print(f"{task.description}: {done} {task.fields['unit']}" + (f", {note}" if note else ""))

    def note(self, text: str) -> None:
        self._bar.update(self._task, note=one_line(text))

    def say(self, line: str) -> None:
        self._console.print(line)
